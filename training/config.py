"""What a user asks of a training run; every value is checked when it is given.  No torch here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal, Self, cast, get_args

Strategy = Literal["auto", "single", "ddp"]
Precision = Literal["fp32", "bf16"]


class ConfigError(ValueError):
    """A setting of a training run is unknown, out of range, or contradicts another."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Raises:
        ConfigError: a value is out of range or contradicts another; the sentence names the
            field, the value and what is allowed.
    """

    strategy: Strategy = "auto"  # auto: ddp when torchrun started several ranks, else single
    precision: Precision = "fp32"
    batch_size: int = 32  # samples of one rank in one micro-batch
    gradient_accumulation_steps: int = 1  # micro-batches in a step
    max_grad_norm: float | None = None  # None: gradients are not clipped
    learning_rate: float = 1e-3  # of the AdamW that is made when no optimizer is given
    epochs: int = 1
    max_steps: int | None = None  # ends the run earlier; counted over all attempts
    num_workers: int = 0  # processes that load data, for each rank
    shuffle: bool = True
    seed: int = 0
    checkpoint_every: int | str | None = "60s"  # steps, or seconds as "90s"; None: only at the end
    checkpoint_dir: str | None = None  # None: BERTH_CHECKPOINT_DIR, else "checkpoints"
    keep_last: int = 3
    resume: bool | str = "auto"  # auto: only where Berth runs us; a path: from that checkpoint

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it can be {', '.join(allowed)}.")
        for name, least in _LEAST.items():
            _check_number(name, getattr(self, name), least, whole=name not in _FRACTIONS)
        for name in ("max_grad_norm", "max_steps"):
            if getattr(self, name) is not None:
                _check_number(
                    name, getattr(self, name), 0 if name in _FRACTIONS else 1, name not in _FRACTIONS
                )
        if not isinstance(self.shuffle, bool):
            raise ConfigError(f"shuffle is {self.shuffle!r}; it can be True or False.")
        if not isinstance(self.resume, bool | str):
            raise ConfigError(f"resume is {self.resume!r}; it can be True, False, 'auto' or a path.")
        if self.checkpoint_every is not None:
            _parse_interval(self.checkpoint_every)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """A config from untyped values, as a file or a form gives them.

        Raises:
            ConfigError: a name is unknown (the sentence lists those there are), or as above.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ConfigError(f"unknown setting {', '.join(unknown)}; there are {', '.join(known)}.")
        return cls(**values)

    @cached_property
    def checkpoint_every_steps(self) -> int | None:
        return None if self.checkpoint_every is None else _parse_interval(self.checkpoint_every)[0]

    @cached_property
    def checkpoint_every_s(self) -> float | None:
        return None if self.checkpoint_every is None else _parse_interval(self.checkpoint_every)[1]

    def choose_strategy(self, world_size: int) -> Strategy:
        """``single`` or ``ddp`` for the number of ranks that torchrun started.

        Raises:
            ConfigError: ``single`` was asked for, and there are several ranks.
        """
        if self.strategy == "single" and world_size > 1:
            raise ConfigError(
                f"strategy is 'single', but torchrun started {world_size} ranks; "
                "start one rank, or choose 'ddp' or 'auto'."
            )
        if self.strategy == "auto":
            return "ddp" if world_size > 1 else "single"
        return self.strategy

    @property
    def resumes(self) -> bool:
        """Whether to look for a checkpoint at the start."""
        if self.resume == "auto":
            return "BERTH_CHECKPOINT_DIR" in os.environ
        return bool(self.resume)

    @property
    def resume_path(self) -> str | None:
        """A checkpoint that the user named; None where the newest is meant."""
        named = isinstance(self.resume, str) and self.resume != "auto"
        return cast(str, self.resume) if named else None


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "strategy": get_args(Strategy),
    "precision": get_args(Precision),
}
_FRACTIONS: Final = {"learning_rate", "max_grad_norm"}
_LEAST: Final[dict[str, int]] = {
    "batch_size": 1,
    "gradient_accumulation_steps": 1,
    "epochs": 1,
    "keep_last": 1,
    "num_workers": 0,
    "seed": 0,
    "learning_rate": 0,
}


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
    sentence = f"checkpoint_every is {value!r}; it can be a number of steps, or seconds as '90s'."
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(sentence)
    if isinstance(value, int):
        if value < 1:
            raise ConfigError(sentence)
        return value, None
    if not value.endswith("s"):
        raise ConfigError(sentence)
    try:
        every_s = float(value[:-1])
    except ValueError as error:
        raise ConfigError(sentence) from error
    if not 0 < every_s < float("inf"):
        raise ConfigError(sentence)
    return None, every_s
