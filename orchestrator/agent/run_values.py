"""Values that a run reports: as every database can store them, and as a rate of steps."""

import math
from collections import deque

from orchestrator.agent.telemetry.progress import PERCENT, STEP
from orchestrator.store.metrics.writer import Point

RATE_WINDOW_S = 30.0
RATE_EVERY_S = 1.0


class StepRate:
    """Steps per second over the last half minute."""

    def __init__(self) -> None:
        self.steps: deque[tuple[float, int]] = deque()
        self.reported_at = 0.0

    def note(self, step: int | None, now: float, points: list[Point], unit: str = STEP) -> float | None:
        """Take the newest step; add a point once a second unless the run reports a throughput itself."""
        if step is None:
            return None
        if self.steps and step < self.steps[-1][1]:  # the run went back after a resume
            self.steps.clear()
        if not self.steps or step > self.steps[-1][1]:
            self.steps.append((now, step))
        while len(self.steps) > 2 and now - self.steps[0][0] > RATE_WINDOW_S:
            self.steps.popleft()
        (first_at, first), (last_at, last) = self.steps[0], self.steps[-1]
        if last_at - first_at < 0.2:
            return None
        rate = (last - first) / (last_at - first_at)
        if now - self.reported_at >= RATE_EVERY_S and not any(
            point.name.endswith("_per_s") for point in points
        ):
            self.reported_at = now
            units = unit if unit == PERCENT else f"{unit}s"
            points.append(Point(f"{units}_per_s", step, now, rate))
        return rate


def storable_text(text: str) -> str:
    """Text of a run as every database can store it: without NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def storable(value: float) -> float | str:
    """A number as the database can store it: JSON has no NaN and no infinities, so they become text."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
