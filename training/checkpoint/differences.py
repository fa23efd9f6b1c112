"""Differences between a saved model and the current one, in sentences."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from training.checkpoint.store import CheckpointError

MOST_LISTED = 8


def describe_differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Describe each parameter that is missing, unknown or of another shape.

    Both arguments are model states: names and tensors.  Lists at most eight differences, then the number
    of the others.
    """
    differences = [f"{name} is in the checkpoint, and not in the model" for name in saved if name not in own]
    differences += [f"{name} is in the model, and not in the checkpoint" for name in own if name not in saved]
    for name in saved:
        if name in own and _shape(saved[name]) != _shape(own[name]):
            differences.append(
                f"{name} has the shape {_shape(saved[name])} in the checkpoint and {_shape(own[name])} "
                "in the model"
            )
    if len(differences) > MOST_LISTED:
        differences[MOST_LISTED:] = [f"and {len(differences) - MOST_LISTED} more"]
    return differences


def _shape(value: Any) -> list[int] | str:
    return [*value.shape] if hasattr(value, "shape") else type(value).__name__


def explain_other_model(saved: Mapping[str, Any], model: nn.Module) -> CheckpointError | None:
    """Return the error to raise if a checkpoint is of another model, else None."""
    differences = describe_differences(saved, model.state_dict())
    if not differences:
        return None
    return CheckpointError(
        f"The checkpoint is of another model: {'; '.join(differences)}. "
        "Resume with the model of that run, or start from scratch with resume=False."
    )
