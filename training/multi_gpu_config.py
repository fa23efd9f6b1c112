"""The settings of this system's first design, in ``TrainConfig``'s terms."""

import os
from dataclasses import dataclass
from enum import Enum

import torch

from training.config import ConfigError, TrainConfig

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
    backend: str | None = None  # what is used follows from the devices: nccl on GPUs, else gloo
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


def _check_devices(config: MultiGPUConfig) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    missing = [index for index in config.device_ids or () if index >= count]
    if missing:
        there = f"there are {count}" if count else "there is none"
        raise ConfigError(
            f"device_ids names GPU {', '.join(map(str, missing))}, but {there} here; leave device_ids out to use "
            "what there is."
        )
    if config.backend not in (None, "nccl", "gloo"):
        raise ConfigError(f"backend is {config.backend!r}; it can be 'nccl' or 'gloo', or be left out.")
    if config.backend == "nccl" and not count:
        raise ConfigError("backend is 'nccl', which needs GPUs; leave it out, or choose 'gloo'.")


def become_rank(config: MultiGPUConfig) -> None:
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
