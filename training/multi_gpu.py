"""The names of this system's first design, over the same loop: old programs run with another import line.

New programs should use ``Trainer``.  torchrun's environment wins over ``rank`` and ``world_size``.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from training.config import ConfigError, TrainConfig
from training.data import SizedDataset, measure_length, mix_seeds, move_to
from training.evaluation import evaluate
from training.explanation import explain
from training.fault import StopRequest
from training.loop import end_step
from training.memory.autotune import OutOfMemoryInStep, clear_memory, is_out_of_memory
from training.performance import MetricsCollector, PerformanceMonitor
from training.plan.fixed import fixed_plan
from training.precision import has_bf16
from training.run import load
from training.saving import save
from training.state import seed_rng
from training.step import forward_backward, train_step, update
from training.strategies.choose import choose_device, make_strategy, prepare_model
from training.trainer import Trainer

__all__ = [
    "DataParallelTrainer",
    "DistributedDataParallelTrainer",
    "FaultToleranceManager",
    "MetricsCollector",
    "MultiGPUConfig",
    "MultiGPUTrainer",
    "MultiGPUTrainingManager",
    "PerformanceMonitor",
    "TrainingMode",
]
_PORT = "29400"


class TrainingMode(Enum):
    DATA_PARALLEL = "data_parallel"
    DISTRIBUTED_DATA_PARALLEL = "distributed_data_parallel"


@dataclass(kw_only=True)
class MultiGPUConfig:
    """One training run; names that ``TrainConfig`` has too mean the same there."""

    training_mode: TrainingMode = TrainingMode.DISTRIBUTED_DATA_PARALLEL
    device_ids: list[int] | None = None  # None: all that are visible
    batch_size: int = 32
    learning_rate: float = 1e-3
    num_epochs: int = 1
    gradient_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    use_mixed_precision: bool = False
    use_gradient_checkpointing: bool = False
    num_workers: int = 0
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    seed: int = 0
    # Distributed
    world_size: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    backend: str | None = None  # None: nccl on GPUs, else gloo
    timeout: float = 600.0  # seconds
    sync_bn: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    static_graph: bool = False
    use_gradient_as_bucket_view: bool = True
    reduce_bucket_size: int = 25  # MiB
    use_fp16_allreduce: bool = False
    fp16_compression: bool = False
    # Faults
    enable_fault_tolerance: bool = True
    checkpoint_frequency: int | None = None  # steps; None: paced by its measured cost
    checkpoint_dir: str | None = None
    resume: bool | str = "auto"

    def to_train_config(self) -> TrainConfig:
        """Raises ConfigError: a value is out of range, or asks for devices that are not there."""
        _check_devices(self)
        data_parallel = self.training_mode is TrainingMode.DATA_PARALLEL
        alone = int(os.environ.get("WORLD_SIZE", self.world_size or 1)) == 1 and "RANK" not in os.environ
        frequency: int | str | None = self.checkpoint_frequency or "auto"
        return TrainConfig(
            strategy="dp" if data_parallel else "single" if alone else "ddp",
            precision="auto" if self.use_mixed_precision else "fp32",
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            epochs=self.num_epochs,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            max_grad_norm=self.max_grad_norm,
            activation_checkpointing="full" if self.use_gradient_checkpointing else "none",
            comm_hook="fp16" if self.use_fp16_allreduce or self.fp16_compression else "none",
            sync_batchnorm=self.sync_bn,
            find_unused_parameters=self.find_unused_parameters,
            broadcast_buffers=self.broadcast_buffers,
            static_graph=self.static_graph,
            gradient_as_bucket_view=self.use_gradient_as_bucket_view,
            bucket_cap_mb=self.reduce_bucket_size,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            checkpoint_every=frequency if self.enable_fault_tolerance else None,
            checkpoint_dir=self.checkpoint_dir,
            resume=self.resume if self.enable_fault_tolerance else False,
            recovery_timeout=self.timeout,
            seed=self.seed,
        )


class MultiGPUTrainer(ABC):
    """A model spread over devices; ``train_step`` takes one batch at a time."""

    def __init__(
        self,
        model: nn.Module,
        config: MultiGPUConfig,
        dataset: SizedDataset,
        val_dataset: SizedDataset | None = None,
    ) -> None:
        trainer = Trainer(config.to_train_config())
        device = choose_device()
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        plan = fixed_plan(trainer.config, world_size, has_bf16=has_bf16(device))
        strategy = make_strategy(plan, device, trainer.config)
        seed_rng(mix_seeds(config.seed, strategy.data_rank))
        self.model = prepare_model(model, strategy, compiled=False)
        state = trainer._make_state(model, measure_length(dataset), strategy, None, None)
        checkpointer = trainer._make_checkpointer(strategy)
        if found := trainer._find_checkpoint(checkpointer):
            state.load_state_dict(found.state)
        self.run = trainer._make_run(
            self.model, state, dataset, val_dataset, None, checkpointer, StopRequest()
        )
        self.run.saved_s = time.monotonic()

    @property
    @abstractmethod
    def mode(self) -> TrainingMode:
        """How it spreads the model."""

    @property
    def device(self) -> torch.device:
        return self.run.strategy.device

    def train_step(self, batch: Any) -> dict[str, float]:
        """One optimizer update on a pair of inputs and targets; waits for the loss."""
        inputs, targets = move_to(tuple(batch), self.device)
        self.model.train()
        loss = forward_backward(self.run, inputs, targets, 1.0, last=True)
        update(self.run)
        self.run.state.step += 1
        return {"loss": float(loss)}

    def train_epoch(self, loader: DataLoader[Any]) -> float:
        """The mean loss of this rank over the rest of the epoch, each sample once over all ranks."""
        run, sampler = self.run, self.run.state.sampler
        batches, in_step = iter(loader), run.strategy.plan.samples_per_step
        self.model.train()
        losses: list[tuple[Tensor, int]] = []
        ended = False
        while not ended:
            samples = min(sampler.left, in_step)
            losses.append((train_step(run, batches, samples), samples))
            run.state.step += 1
            ended = sampler.advance(samples)
            run.reporter.report(run.state.step, loss=losses[-1][0])
            end_step(run)
        return float(sum(float(loss) * samples for loss, samples in losses) / sum(n for _, n in losses))

    def close(self) -> None:
        """Save, and leave the process group."""
        save(self.run)
        self.run.checkpointer.close()
        self.run.strategy.close()


class DataParallelTrainer(MultiGPUTrainer):
    mode = TrainingMode.DATA_PARALLEL


class DistributedDataParallelTrainer(MultiGPUTrainer):
    mode = TrainingMode.DISTRIBUTED_DATA_PARALLEL


@dataclass
class FaultToleranceManager:
    """What to do about an error, in words; whether the training may go on."""

    config: MultiGPUConfig
    errors: list[str] = field(default_factory=list)

    def handle_error(self, error: BaseException) -> bool:
        """Note what it means; True where another step may be tried: memory was short and has been given back."""
        self.errors.append(explain(error))
        ends_all = isinstance(error, OutOfMemoryInStep)  # other ranks wait for this one, or are gone
        if ends_all or not (self.config.enable_fault_tolerance and is_out_of_memory(error)):
            return False
        clear_memory()
        return True


class MultiGPUTrainingManager:
    """Sets a training up and runs it epoch by epoch."""

    def __init__(self, config: MultiGPUConfig) -> None:
        self.config = config
        self.fault_tolerance = FaultToleranceManager(config)
        self.performance_monitor = PerformanceMonitor()
        self.metrics = MetricsCollector()
        self._trainer: MultiGPUTrainer | None = None

    @property
    def trainer(self) -> MultiGPUTrainer:
        if self._trainer is None:
            raise ConfigError("There is no trainer yet; call setup_training(model, dataset) first.")
        return self._trainer

    def setup_training(
        self, model: nn.Module, dataset: SizedDataset, val_dataset: SizedDataset | None = None
    ) -> tuple[nn.Module, DataLoader[Any], DataLoader[Any] | None]:
        """The model on its devices, and loaders of this rank's samples.

        Raises:
            ConfigError, DataError: what was asked for cannot be done; the sentence says what can.
        """
        _become_rank(self.config)
        kinds: dict[TrainingMode, type[MultiGPUTrainer]] = {
            TrainingMode.DATA_PARALLEL: DataParallelTrainer,
            TrainingMode.DISTRIBUTED_DATA_PARALLEL: DistributedDataParallelTrainer,
        }
        self._trainer = kinds[self.config.training_mode](model, self.config, dataset, val_dataset)
        run = self._trainer.run
        train_loader = load(run, dataset, run.state.sampler)
        val_loader: DataLoader[Any] | None = None
        if val_dataset is not None:
            val_loader = DataLoader(val_dataset, batch_size=self.config.batch_size)  # type: ignore[arg-type]  # it has what a Dataset has
        self.performance_monitor.start_monitoring()
        return self._trainer.model, train_loader, val_loader

    def train_epoch(self, loader: DataLoader[Any], epoch: int) -> dict[str, float]:
        """Train an epoch; ``loss`` is the mean, ``throughput`` in samples a second of all ranks."""
        start_s, samples = time.perf_counter(), self.trainer.run.state.sampler.left
        loss = self.trainer.train_epoch(loader)
        took_s = time.perf_counter() - start_s
        result = {"loss": loss, "epoch": float(epoch), "throughput": samples / took_s, "epoch_time": took_s}
        self.metrics.record(loss=loss, throughput=result["throughput"])
        self.metrics.collect(self.trainer)
        return result

    def validate_epoch(self, loader: DataLoader[Any]) -> dict[str, float]:
        """The mean loss over the dataset behind ``loader``, each sample once over all ranks."""
        dataset: Any = loader.dataset
        return {"loss": evaluate(self.trainer.run, dataset)}

    def cleanup(self) -> None:
        """Save and leave; harmless before ``setup_training``."""
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None

    def _generate_comparison_report(self, results: Mapping[str, Mapping[str, float]]) -> str:
        """A table of runs by name, the one with most throughput first."""
        ordered = sorted(results.items(), key=lambda item: -item[1].get("throughput", 0.0))
        names = list(dict.fromkeys(name for _, values in ordered for name in values))
        lines = [" | ".join(["run", *names])]
        lines += [
            " | ".join([run, *(f"{values[name]:.4g}" if name in values else "" for name in names)])
            for run, values in ordered
        ]
        return "\n".join(lines)


def _check_devices(config: MultiGPUConfig) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    missing = [index for index in config.device_ids or () if index >= count]
    if missing:
        there = f"there are {count}" if count else "there is none"
        raise ConfigError(
            f"device_ids names GPU {', '.join(map(str, missing))}, but {there} here; leave device_ids out to use "
            "what there is."
        )
    if config.backend == "nccl" and not count:
        raise ConfigError("backend is 'nccl', which needs GPUs; leave it out, or choose 'gloo'.")


def _become_rank(config: MultiGPUConfig) -> None:
    """Without torchrun, a rank that the config numbers itself."""
    if "RANK" in os.environ or (config.world_size or 1) == 1:
        return
    if config.rank is None:
        raise ConfigError(
            f"world_size is {config.world_size}, but this process has no rank; start with torchrun, or set rank."
        )
    local = config.rank if config.local_rank is None else config.local_rank
    os.environ.update(RANK=str(config.rank), LOCAL_RANK=str(local), WORLD_SIZE=str(config.world_size))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", _PORT)
