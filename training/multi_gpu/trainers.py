"""The trainers and the manager of the first design, on today's loop."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from training.checkpoint.policy import StopRequest
from training.config import ConfigError
from training.config.fixed_plan import fixed_plan
from training.data import SizedDataset, move_to, start_epoch
from training.loop.epochs import end_step, validate
from training.loop.run import load
from training.loop.saving import save
from training.loop.step import forward_backward, train_step, update
from training.memory.autotune import OutOfMemoryInStep, clear_memory, is_out_of_memory
from training.model.batches import Objective
from training.model.objective import LossFn, MakeOptimizer, MakeScheduler
from training.multi_gpu.performance import MetricsCollector, PerformanceMonitor
from training.multi_gpu.settings import MultiGPUConfig, TrainingMode, become_rank
from training.rng import mix_seeds, seed_rng
from training.strategies.choose import choose_device, make_strategy, prepare_model
from training.strategies.precision import has_bf16
from training.trainer import Trainer
from training.watch.explanation import explain


class MultiGPUTrainer(ABC):
    """A model distributed over devices; ``train_step`` takes one batch at a time."""

    def __init__(
        self,
        model: nn.Module,
        config: MultiGPUConfig,
        dataset: SizedDataset,
        val_dataset: SizedDataset | None = None,
        *,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
        scheduler: LRScheduler | MakeScheduler | None = None,
    ) -> None:
        """Distribute ``model``; the options of ``Trainer.fit`` apply."""
        trainer = Trainer(config.to_train_config())
        device = choose_device(config.device_ids)
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        plan = fixed_plan(trainer.config, world_size, has_bf16=has_bf16(device))
        strategy = make_strategy(plan, device, trainer.config, device_ids=config.device_ids)
        seed_rng(mix_seeds(config.seed, strategy.data_rank))
        self.model = prepare_model(model, strategy, compiled=False)
        state = trainer._make_state(model, dataset, strategy, optimizer, scheduler)
        checkpointer = trainer._make_checkpointer(strategy)
        if checkpoint := trainer._find_checkpoint(checkpointer):
            state.load_state_dict(checkpoint.state)
        self.run = trainer._make_run(
            self.model, state, dataset, val_dataset, Objective(loss_fn), checkpointer, StopRequest()
        )
        self.run.saved_s = time.monotonic()

    @property
    @abstractmethod
    def mode(self) -> TrainingMode:
        """How the model is distributed."""

    @property
    def device(self) -> torch.device:
        return self.run.strategy.device

    def train_step(self, batch: Any) -> dict[str, float]:
        """Make one optimizer update on a batch of this rank; ``loss`` is the mean over all ranks."""
        self.model.train()
        loss = forward_backward(self.run, move_to(batch, self.device), 1.0, last=True)
        update(self.run)
        self.run.state.step += 1
        ranks = self.run.strategy.ranks
        return {"loss": float(ranks.sum(loss.double())) / ranks.size}

    def train_epoch(self, loader: DataLoader[Any]) -> float:
        """Train the rest of the epoch, each sample once over all ranks; return the mean loss of all."""
        run, sampler = self.run, self.run.state.sampler
        in_step = run.strategy.plan.samples_per_step
        start_epoch(loader, sampler)
        batches = run.stream(loader)
        self.model.train()
        losses: list[tuple[Tensor, int]] = []  # with the number of this rank's samples
        ended = False
        while not ended:
            samples = min(sampler.left, in_step)
            losses.append((train_step(run, batches, samples), sampler.rank_count(samples)))
            run.state.step += 1
            ended = sampler.advance(samples)
            if run.reread:
                run.reread = False
                batches = run.stream(load(run, run.train_dataset, sampler))
            run.reporter.report(run.state.step, loss=losses[-1][0])
            end_step(run)
        total = torch.stack([loss.double() * samples for loss, samples in losses]).sum().cpu()
        own_samples = torch.tensor(sum(samples for _, samples in losses), dtype=torch.float64)
        sums = run.strategy.ranks.sum(torch.stack([total, own_samples]))
        return float(sums[0] / sums[1])

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
    """Explains errors, decides whether the training may continue, and returns to the newest checkpoint."""

    config: MultiGPUConfig
    errors: list[str] = field(default_factory=list)
    trainer: MultiGPUTrainer | None = None  # since ``setup_training``

    def handle_error(self, error: BaseException) -> bool:
        """Record the explanation; return True if another step may be tried, after freeing memory."""
        self.errors.append(explain(error))
        is_fatal = isinstance(error, OutOfMemoryInStep)  # other ranks wait for this one, or have ended
        if is_fatal or not (self.config.enable_fault_tolerance and is_out_of_memory(error)):
            return False
        clear_memory()
        return True

    def recover(self) -> int | None:
        """Return to the newest checkpoint that verifies; return its step, or None without one.

        All ranks must call this.  Afterwards continue with ``train_epoch``.

        Raises:
            CheckpointError: all checkpoints are damaged, or this program cannot read the newest.
        """
        if self.trainer is None:
            raise ConfigError("There is no trainer yet; call setup_training(model, dataset) first.")
        run = self.trainer.run
        run.checkpointer.wait()
        checkpoint = run.checkpointer.load_latest(begin_anew=False)
        if checkpoint is None:
            return None
        run.state.optimizer.zero_grad(set_to_none=True)
        run.state.load_state_dict(checkpoint.state)
        return checkpoint.step


class MultiGPUTrainingManager:
    """Sets up a training and runs it epoch by epoch."""

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
        self,
        model: nn.Module,
        dataset: SizedDataset,
        val_dataset: SizedDataset | None = None,
        *,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
        scheduler: LRScheduler | MakeScheduler | None = None,
    ) -> tuple[nn.Module, DataLoader[Any], DataLoader[Any] | None]:
        """Return the model on its devices, and loaders of this rank's samples; options as of ``Trainer.fit``.

        Raises:
            ConfigError, DataError: a setting or dataset cannot be used; the message says what to change.
        """
        self.config.to_train_config()  # before this process becomes a rank, which a refusal would leave behind
        become_rank(self.config)
        kinds: dict[TrainingMode, type[MultiGPUTrainer]] = {
            TrainingMode.DATA_PARALLEL: DataParallelTrainer,
            TrainingMode.DISTRIBUTED_DATA_PARALLEL: DistributedDataParallelTrainer,
        }
        self._trainer = kinds[TrainingMode(self.config.training_mode)](
            model,
            self.config,
            dataset,
            val_dataset,
            loss_fn=loss_fn,
            optimizer=optimizer,
            scheduler=scheduler,
        )
        run = self._trainer.run
        self.fault_tolerance.trainer = self._trainer
        train_loader = load(run, dataset, run.state.sampler)
        val_loader: DataLoader[Any] | None = None
        if val_dataset is not None:
            val_loader = DataLoader(val_dataset, batch_size=self.config.batch_size)  # type: ignore[arg-type]  # it has what a Dataset has
        self.performance_monitor.start_monitoring()
        return self._trainer.model, train_loader, val_loader

    def train_epoch(self, loader: DataLoader[Any], epoch: int) -> dict[str, float]:
        """Train an epoch; ``loss`` is the mean, ``throughput`` the samples per second of all ranks."""
        start_s, samples = time.perf_counter(), self.trainer.run.state.sampler.left
        loss = self.trainer.train_epoch(loader)
        took_s = time.perf_counter() - start_s
        result = {"loss": loss, "epoch": float(epoch), "throughput": samples / took_s, "epoch_time": took_s}
        self.metrics.record(loss=loss, throughput=result["throughput"], training_time=took_s)
        self.metrics.collect(self.trainer)
        return result

    def validate_epoch(self, loader: DataLoader[Any]) -> dict[str, float]:
        """Return the mean loss over the loader's dataset, each sample once over all ranks."""
        dataset: Any = loader.dataset
        values = validate(self.trainer.run, dataset)
        return {name.removeprefix("val_"): value for name, value in values.items()}

    def cleanup(self) -> None:
        """Save, and leave the process group; does nothing before ``setup_training``."""
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = self.fault_tolerance.trainer = None

    def _generate_comparison_report(self, results: Mapping[str, Mapping[str, float]]) -> str:
        """Make a table of runs, the one with the highest throughput first."""
        ordered = sorted(results.items(), key=lambda item: -item[1].get("throughput", 0.0))
        names = list(dict.fromkeys(name for _, values in ordered for name in values))
        lines = [" | ".join(["run", *names])]
        lines += [
            " | ".join([run, *(f"{values[name]:.4g}" if name in values else "" for name in names)])
            for run, values in ordered
        ]
        return "\n".join(lines)
