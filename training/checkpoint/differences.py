"""What tells a saved model from the one at hand, for people."""

from collections.abc import Mapping
from typing import Any

MOST_LISTED = 8


def describe_differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """A sentence for each parameter that is missing, unknown or of another shape; empty if none is.

    Both are states of models: names and tensors.  At most eight are listed, then how many more.
    """
    found = [f"{name} is in the checkpoint, and not in the model" for name in saved if name not in own]
    found += [f"{name} is in the model, and not in the checkpoint" for name in own if name not in saved]
    for name in saved:
        if name in own and _shape(saved[name]) != _shape(own[name]):
            found.append(
                f"{name} has the shape {_shape(saved[name])} in the checkpoint and {_shape(own[name])} "
                "in the model"
            )
    if len(found) > MOST_LISTED:
        found[MOST_LISTED:] = [f"and {len(found) - MOST_LISTED} more"]
    return found


def _shape(value: Any) -> list[int] | str:
    return [*value.shape] if hasattr(value, "shape") else type(value).__name__
