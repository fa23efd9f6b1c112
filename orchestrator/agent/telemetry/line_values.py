"""The content of one printed line."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.agent.telemetry.progress import STEP

NO_VALUES: Mapping[str, float] = MappingProxyType({})


class LineValues(NamedTuple):
    """The content of one line; ``values`` is empty if the line only reports progress."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: int | None = None
    values: Mapping[str, float] = NO_VALUES
    unit: str = STEP  # of the step: "step", "sample", "epoch" or "percent"
    moves: bool = True  # the step is where the training is now
