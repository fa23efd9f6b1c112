"""The lengths of trainings that a trainer knows and nowhere prints."""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Length(NamedTuple):
    """A method that a trainer calls once its data are there, and what its object then tells."""

    trainer: str
    module: str
    function: str
    steps_of: Callable[[Any], int | None]


def _batches_of_lightning(loop: Any) -> int | None:
    """The batches of all epochs, as Lightning's bar counts them; None for a training without an end."""
    trainer = loop.trainer
    batches, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
    ends = [
        epochs * batches if epochs is not None and epochs >= 0 else math.inf,
        steps * trainer.accumulate_grad_batches if steps >= 0 else math.inf,
    ]
    whole = min(ends)
    return int(whole) if math.isfinite(whole) and whole > 0 else None


def _timesteps(model: Any) -> int | None:
    total: object = model._total_timesteps
    return total if isinstance(total, int) and total > 0 else None


LENGTHS: Final = (
    *(
        Length("lightning", f"{package}.loops.fit_loop", "_FitLoop.on_advance_start", _batches_of_lightning)
        for package in ("lightning.pytorch", "pytorch_lightning")
    ),
    Length(
        "stable_baselines3",
        "stable_baselines3.common.base_class",
        "BaseAlgorithm._setup_learn",
        _timesteps,
    ),
)
