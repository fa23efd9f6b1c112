"""Settings of a training run, checked when they are set.  Imports no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal, Self, cast, get_args

from training.config.extensions import ExtensionError, Kind, registered
from training.config.plan import (
    CheckpointingName,
    OffloadName,
    PlacementName,
    PrecisionName,
    ScheduleName,
    StrategyName,
)

Strategy = Literal["auto"] | StrategyName
Precision = Literal["auto"] | PrecisionName
ActivationCheckpointing = Literal["auto"] | CheckpointingName
CpuOffload = Literal["auto"] | OffloadName
CommHook = Literal["none", "fp16", "bf16", "powersgd"]
LrScaling = Literal["none", "linear", "sqrt"]


class ConfigError(ValueError):
    """A setting of a training run is unknown, out of range, or contradicts another."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Raises:
        ConfigError: a value is out of range or contradicts another; the message names the
            field, the value and what is allowed.
    """

    strategy: Strategy = "auto"
    tensor_parallel_size: int | None = (
        None  # ranks that share a layer; None: all of them for "tensor", else 1
    )
    pipeline_parallel_size: int | None = None  # ranks that share the blocks; None: all remaining ranks
    pipeline_schedule: ScheduleName = "1f1b"
    pipeline_micro_batches: int | None = None  # parts of a batch; None: enough to keep the stages busy
    placement: PlacementName = "auto"  # how "placed" assigns layers; auto: the fastest predicted
    precision: Precision = "fp32"  # auto: bf16 on a GPU that has it, else fp32
    batch_size: int | Literal["auto"] = 32  # samples per data-parallel rank and micro-batch
    gradient_accumulation_steps: int = 1  # micro-batches per step
    max_grad_norm: float | None = None  # None: gradients are not clipped
    activation_checkpointing: ActivationCheckpointing = "none"
    cpu_offload: CpuOffload = "none"
    compile: bool = False
    plan_trials: bool = False  # time five real steps of the three best plans before choosing
    comm_hook: CommHook = "none"  # how gradients travel between ranks of ddp and zero1
    local_sgd_steps: int | None = None  # average weights at this interval instead of exchanging gradients
    sync_batchnorm: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    static_graph: bool = False
    gradient_as_bucket_view: bool = True
    bucket_cap_mb: int = 25
    load_balance: bool = False  # after each epoch slower ranks get smaller batches, or fewer blocks
    learning_rate: float = 1e-3  # of the default optimizer, AdamW
    lr_scaling: LrScaling = "none"  # with the samples of a step
    lr_batch_size: int | None = None  # samples per step that the rate was chosen for; None: one rank's
    lr_warmup_steps: int | None = None  # None: 5 % of the run where lr_scaling changes the rate, else 0
    epochs: int = 1
    max_steps: int | None = None  # an earlier end, counted over all attempts
    stop_on_nan: bool = False  # False: a loss that is not finite is only an event
    num_workers: int = 0  # data-loading processes per rank
    pin_memory: bool | None = None  # None: where there is a GPU
    prefetch_factor: int | None = None  # batches that each worker prepares ahead; None: two
    persistent_workers: bool = False
    shuffle: bool = True
    seed: int = 0
    deterministic: bool = False  # use only kernels with reproducible results
    checkpoint_every: int | str | None = "60s"  # steps, seconds as "90s", or "auto"; None: only at the end
    checkpoint_dir: str | None = None  # None: BERTH_CHECKPOINT_DIR, else "checkpoints"
    keep_last: int = 3
    callbacks: str = ""  # registered by other packages, names with commas between
    pause_after_failed_saves: int = (
        3  # consecutive failures before the training waits for a save; 0: never wait
    )
    resume: bool | str = "auto"  # auto: only under Berth; a path: from that checkpoint
    recovery_timeout: float = 600.0  # seconds a rank waits for the others before it fails

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value in allowed or (name == "strategy" and value in _registered("strategies")):
                continue
            own = _registered("strategies") if name == "strategy" else []
            raise ConfigError(f"{name} is {value!r}; it can be {', '.join([*allowed, *own])}.")
        for name in self.callback_names:
            if name not in (there := _registered("callbacks")):
                raise ConfigError(
                    f"callbacks has {name!r}, which no installed package registers; there are "
                    f"{', '.join(there) or 'none'}."
                )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if (value is None and name in _OPTIONAL) or (value == "auto" and name == "batch_size"):
                continue
            _check_number(name, value, least, whole=name not in _FRACTIONS)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool) and (name, getattr(self, name)) != (
                "pin_memory",
                None,
            ):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it can be True or False.")
        if not isinstance(self.resume, bool | str):
            raise ConfigError(f"resume is {self.resume!r}; it can be True, False, 'auto' or a path.")
        if self.checkpoint_every is not None:
            _parse_interval(self.checkpoint_every)
        _refuse_contradictions(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from untyped values of a file or a form.

        Raises:
            ConfigError: a name is unknown (the message lists the known names), or as for ``TrainConfig``.
        """
        names = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(names)):
            raise ConfigError(f"unknown setting {', '.join(unknown)}; there are {', '.join(names)}.")
        return cls(**values)

    @cached_property
    def checkpoint_every_steps(self) -> int | None:
        return None if self.checkpoint_every is None else _parse_interval(self.checkpoint_every)[0]

    @cached_property
    def checkpoint_every_s(self) -> float | None:
        """Seconds between checkpoints; for "auto" the first interval."""
        return None if self.checkpoint_every is None else _parse_interval(self.checkpoint_every)[1]

    @property
    def callback_names(self) -> list[str]:
        if not isinstance(self.callbacks, str):
            raise ConfigError(
                f"callbacks is {self.callbacks!r}; it must be a text of names with commas between."
            )
        return [name.strip() for name in self.callbacks.split(",") if name.strip()]

    @property
    def has_own_strategy(self) -> bool:
        """Whether another package registered the strategy."""
        return self.strategy not in _CHOICES["strategy"]

    @property
    def resumes(self) -> bool:
        """Whether to look for a checkpoint at the start."""
        if self.resume == "auto":
            return "BERTH_CHECKPOINT_DIR" in os.environ
        return bool(self.resume)

    @property
    def resume_path(self) -> str | None:
        """The checkpoint that the user named; None for the newest."""
        named = isinstance(self.resume, str) and self.resume != "auto"
        return cast(str, self.resume) if named else None


AUTO_INTERVAL_S: Final = 60.0

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "strategy": ("auto", *get_args(StrategyName)),
    "precision": ("auto", *get_args(PrecisionName)),
    "activation_checkpointing": ("auto", *get_args(CheckpointingName)),
    "cpu_offload": ("auto", *get_args(OffloadName)),
    "pipeline_schedule": get_args(ScheduleName),
    "placement": get_args(PlacementName),
    "comm_hook": get_args(CommHook),
    "lr_scaling": get_args(LrScaling),
}
_SWITCHES: Final = (
    "compile",
    "plan_trials",
    "sync_batchnorm",
    "find_unused_parameters",
    "broadcast_buffers",
    "static_graph",
    "gradient_as_bucket_view",
    "load_balance",
    "stop_on_nan",
    "pin_memory",
    "persistent_workers",
    "shuffle",
    "deterministic",
)
_FRACTIONS: Final = {"learning_rate", "max_grad_norm", "recovery_timeout"}
_OPTIONAL: Final = {
    "max_grad_norm",
    "max_steps",
    "local_sgd_steps",
    "lr_warmup_steps",
    "lr_batch_size",
    "prefetch_factor",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "pipeline_micro_batches",
}
_LEAST: Final[dict[str, int]] = {
    "batch_size": 1,
    "gradient_accumulation_steps": 1,
    "epochs": 1,
    "keep_last": 1,
    "pause_after_failed_saves": 0,
    "num_workers": 0,
    "seed": 0,
    "learning_rate": 0,
    "max_grad_norm": 0,
    "max_steps": 1,
    "local_sgd_steps": 1,
    "lr_warmup_steps": 0,
    "lr_batch_size": 1,
    "prefetch_factor": 1,
    "bucket_cap_mb": 1,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "pipeline_micro_batches": 1,
    "recovery_timeout": 0,
}
# A setting, the values that leave it unused, and the strategies that support it.
_ONLY_WITH: Final[tuple[tuple[str, tuple[object, ...], tuple[str, ...]], ...]] = (
    ("comm_hook", ("none",), ("ddp", "zero1")),
    ("local_sgd_steps", (None,), ("ddp",)),
    ("load_balance", (False,), ("ddp", "zero1", "zero2", "fsdp", "pipeline")),
    ("tensor_parallel_size", (None, 1), ("tensor", "pipeline")),
    ("pipeline_parallel_size", (None, 1), ("pipeline", "placed")),
    ("placement", ("auto",), ("placed",)),
    ("sync_batchnorm", (False,), ("ddp", "zero1")),
    ("compile", (False,), ("single", "ddp", "zero1", "zero2", "fsdp")),
)
_RECOMPUTING: Final = tuple(name for name in get_args(StrategyName) if name != "placed")
_OFFLOADS: Final[dict[str, tuple[str, ...]]] = {
    "optimizer": ("single", "ddp"),
    "parameters": ("zero2", "fsdp"),
    "activations": ("single", "ddp", "zero1", "zero2", "fsdp", "tensor"),
}


def _registered(kind: Kind) -> list[str]:
    try:
        return sorted(registered(kind))
    except ExtensionError as error:
        raise ConfigError(f"{error}") from error


def _refuse_contradictions(config: TrainConfig) -> None:
    if config.strategy != "auto":
        for name, unused, able in _ONLY_WITH:
            value = getattr(config, name)
            if value not in unused and config.strategy not in able:
                raise _contradiction(config, name, able)
        able = _OFFLOADS.get(config.cpu_offload, (config.strategy,))
        if config.strategy not in able:
            raise _contradiction(config, "cpu_offload", able)
        if config.precision == "fp16" and config.strategy in ("pipeline", "tensor", "placed"):
            raise ConfigError(f"precision 'fp16' needs scaled gradients, which strategy {config.strategy!r} "
                              "does not have; use 'bf16'.")  # fmt: skip
        if config.strategy == "placed" and config.activation_checkpointing not in ("none", "auto"):
            raise _contradiction(config, "activation_checkpointing", _RECOMPUTING)
    if config.local_sgd_steps is not None and config.comm_hook != "none":
        raise ConfigError(
            "local_sgd_steps and comm_hook contradict each other: without an exchange of gradients there is "
            "nothing to compress; set only one of them."
        )
    if config.lr_batch_size is not None and config.lr_scaling == "none":
        raise ConfigError(
            f"lr_batch_size is {config.lr_batch_size}, but lr_scaling is 'none'; set lr_scaling to 'linear' or 'sqrt'."
        )
    for name in ("prefetch_factor", "persistent_workers"):
        if getattr(config, name) and config.num_workers == 0:
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}, but num_workers is 0; set num_workers too."
            )


def _contradiction(config: TrainConfig, name: str, able: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        f"{name} is {getattr(config, name)!r}, which strategy {config.strategy!r} does not support; "
        f"strategies that do are {', '.join(able)}."
    )


def _check_number(name: str, value: object, least: int, whole: bool) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number.")
    too_small = value < least if whole else not least < value < float("inf")
    if too_small:
        raise ConfigError(
            f"{name} is {value!r}; it must be {'at least' if whole else 'finite and above'} {least}."
        )


def _parse_interval(value: int | str) -> tuple[int | None, float | None]:
    """``(steps, None)`` for a whole number, ``(None, seconds)`` for a string like ``"90s"``."""
    message = f"checkpoint_every is {value!r}; it can be a number of steps, seconds as '90s', or 'auto'."
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(message)
    if isinstance(value, int):
        if value < 1:
            raise ConfigError(message)
        return value, None
    if value == "auto":
        return None, AUTO_INTERVAL_S
    if not value.endswith("s"):
        raise ConfigError(message)
    try:
        every_s = float(value[:-1])
    except ValueError as error:
        raise ConfigError(message) from error
    if not 0 < every_s < float("inf"):
        raise ConfigError(message)
    return None, every_s
