"""The settings of this system's first design, translated to ``TrainConfig``."""

import os
import re
import warnings
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Literal

import torch

from training.config import ConfigError, TrainConfig

_PORT = "29400"
_TIMEOUT_S = 600.0
_BUCKET_MIB, _MOST_MIB = 25, 4096
_MIB = 1 << 20
_OWN_NAMES = {
    "epochs": "num_epochs",
    "sync_batchnorm": "sync_bn",
    "gradient_as_bucket_view": "use_gradient_as_bucket_view",
    "checkpoint_every": "checkpoint_frequency",
}


class TrainingMode(Enum):
    DATA_PARALLEL = "data_parallel"
    DISTRIBUTED_DATA_PARALLEL = "distributed_data_parallel"


@dataclass(kw_only=True)
class MultiGPUConfig:
    """Settings of a training run; names shared with ``TrainConfig`` have the same meaning."""

    training_mode: TrainingMode = TrainingMode.DISTRIBUTED_DATA_PARALLEL
    device_ids: list[int] | None = None  # None: all visible ones
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
    backend: str | None = None  # checked only; the devices decide: nccl on GPUs, else gloo
    timeout: float | timedelta | None = None  # seconds a rank waits for the others; None: 600
    recovery_timeout: float | timedelta | None = None  # the same
    sync_bn: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    static_graph: bool = False
    use_gradient_as_bucket_view: bool = True
    reduce_bucket_size: int | None = None  # bytes from a MiB on, or a number of MiB; None: 25 MiB
    bucket_cap_mb: int | None = None  # the same, in MiB
    use_fp16_allreduce: bool = False
    fp16_compression: bool = False
    # Faults
    enable_fault_tolerance: bool = True
    checkpoint_frequency: int | None = None  # steps; None: paced by its measured cost
    checkpoint_dir: str | None = None
    resume: bool | str = "auto"

    def to_train_config(self) -> TrainConfig:
        """Translate; raise ConfigError if a value is out of range or names devices that do not exist."""
        _check_devices(self)
        _check_switches(self)
        data_parallel = TrainingMode(self.training_mode) is TrainingMode.DATA_PARALLEL
        single_rank = (
            int(os.environ.get("WORLD_SIZE", self.world_size or 1)) == 1 and "RANK" not in os.environ
        )
        compresses = self.use_fp16_allreduce or self.fp16_compression
        if data_parallel:
            _refuse_with_data_parallel(self)
        if self.sync_bn and not single_rank and not torch.cuda.is_available():
            raise ConfigError("sync_bn is True, which needs GPUs; remove it on CPUs.")
        if data_parallel and not torch.cuda.is_available():
            data_parallel = _replace_data_parallel()
        try:
            return TrainConfig(
                strategy="dp" if data_parallel else "single" if single_rank else "ddp",
                precision=_mixed_precision() if self.use_mixed_precision else "fp32",
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                epochs=self.num_epochs,
                gradient_accumulation_steps=self.gradient_accumulation_steps,
                max_grad_norm=self.max_grad_norm,
                activation_checkpointing="full" if self.use_gradient_checkpointing else "none",
                # A single process exchanges nothing, so compression has no effect.
                comm_hook="fp16" if compresses and not single_rank else "none",
                sync_batchnorm=self.sync_bn and not single_rank,
                find_unused_parameters=self.find_unused_parameters,
                broadcast_buffers=self.broadcast_buffers,
                static_graph=self.static_graph,
                gradient_as_bucket_view=self.use_gradient_as_bucket_view,
                bucket_cap_mb=_bucket_mib(self),
                num_workers=self.num_workers,
                pin_memory=self.pin_memory,
                prefetch_factor=self.prefetch_factor,
                persistent_workers=self.persistent_workers,
                checkpoint_every=_checkpoint_every(self),
                checkpoint_dir=self.checkpoint_dir,
                resume=self.resume if self.enable_fault_tolerance else False,
                recovery_timeout=_timeout_s(self),
                seed=self.seed,
            )
        except ConfigError as error:
            raise ConfigError(_in_own_names(str(error), self)) from error


def _replace_data_parallel() -> bool:
    """Warn that there are no GPUs to divide a batch over; torch's DataParallel runs on the CPU then, too."""
    warnings.warn(
        "There is no GPU here, so TrainingMode.DATA_PARALLEL runs as one process on the CPU.",
        stacklevel=4,
    )
    return False


def _mixed_precision() -> Literal["auto", "fp16"]:
    """Return bf16 where the GPUs have it, as "auto" does; on older ones fp16 with scaled gradients."""
    old_gpu = torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False)
    return "fp16" if old_gpu else "auto"


def _checkpoint_every(config: MultiGPUConfig) -> int | str | None:
    if not config.enable_fault_tolerance:
        return None
    return "auto" if config.checkpoint_frequency is None else config.checkpoint_frequency


def _timeout_s(config: MultiGPUConfig) -> float:
    timeouts = {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name in ("timeout", "recovery_timeout")
        if (value := getattr(config, name)) is not None
    }
    if len({*timeouts.values()}) > 1:
        values = " and ".join(f"{name} is {value}" for name, value in timeouts.items())
        raise ConfigError(
            f"{values}; both are the seconds that a rank waits for the others. Set one of them."
        )
    return next(iter(timeouts.values()), _TIMEOUT_S)


def _bucket_mib(config: MultiGPUConfig) -> int:
    """Return the bucket size; ``reduce_bucket_size`` may be bytes (25 * 1024 * 1024) or MiB, as in old programs."""
    size, given_mib = config.reduce_bucket_size, config.bucket_cap_mb
    size_mib = size
    if isinstance(size, int) and size >= _MIB:
        size_mib = round(size / _MIB)
    elif isinstance(size, int) and size > _MOST_MIB:
        raise ConfigError(
            f"reduce_bucket_size is {size}, too large for MiB and too small for bytes. Use bytes (25 * 1024 * 1024), "
            "or bucket_cap_mb=25."
        )
    if size_mib is not None and given_mib is not None and size_mib != given_mib:
        raise ConfigError(
            f"reduce_bucket_size is {size} ({size_mib} MiB), but bucket_cap_mb is {given_mib}; both are the size of a "
            "bucket of gradients. Set one of them."
        )
    return next((value for value in (given_mib, size_mib) if value is not None), _BUCKET_MIB)


def _check_switches(config: MultiGPUConfig) -> None:
    """Check the values that ``TrainConfig`` does not get unchanged."""
    if config.training_mode not in (*TrainingMode, *(mode.value for mode in TrainingMode)):
        allowed = ", ".join(f"TrainingMode.{mode.name}" for mode in TrainingMode)
        raise ConfigError(f"training_mode is {config.training_mode!r}; it can be {allowed}.")
    for name in ("use_mixed_precision", "use_gradient_checkpointing", "use_fp16_allreduce", "fp16_compression",
                 "enable_fault_tolerance", "sync_bn"):  # fmt: skip
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"{name} is {getattr(config, name)!r}; it can be True or False.")


def _refuse_with_data_parallel(config: MultiGPUConfig) -> None:
    for name in ("use_fp16_allreduce", "fp16_compression", "sync_bn"):
        if getattr(config, name):
            raise ConfigError(
                f"{name} is True, but TrainingMode.DATA_PARALLEL has no exchange between processes; remove it, "
                "or use TrainingMode.DISTRIBUTED_DATA_PARALLEL."
            )


def _in_own_names(message: str, config: MultiGPUConfig) -> str:
    """Replace the names of ``TrainConfig`` in a message by those that the user wrote."""
    names = {
        **_OWN_NAMES,
        "bucket_cap_mb": "reduce_bucket_size" if config.bucket_cap_mb is None else "bucket_cap_mb",
        "recovery_timeout": "timeout" if config.recovery_timeout is None else "recovery_timeout",
    }
    return re.sub(r"\b\w+\b", lambda word: names.get(word[0], word[0]), message)


def _check_devices(config: MultiGPUConfig) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    missing = [index for index in config.device_ids or () if index >= count]
    if missing:
        available = f"there are {count}" if count else "there is none"
        raise ConfigError(
            f"device_ids names GPU {', '.join(map(str, missing))}, but {available} here; remove device_ids to use "
            "all GPUs."
        )
    if config.backend not in (None, "nccl", "gloo"):
        raise ConfigError(f"backend is {config.backend!r}; it can be 'nccl' or 'gloo', or None.")
    if config.backend == "nccl" and not count:
        raise ConfigError("backend is 'nccl', which needs GPUs; remove it, or choose 'gloo'.")


def become_rank(config: MultiGPUConfig) -> None:
    """Set torchrun's variables if the config numbers the ranks itself."""
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
    if config.rank == 0:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        print(  # noqa: T201 -- for the person who waits in a terminal
            f"Waiting at {place} for the other {(config.world_size or 1) - 1} processes; torchrun starts all of them.",
            flush=True,
        )
