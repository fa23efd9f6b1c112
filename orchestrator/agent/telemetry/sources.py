"""Which source of a run tells each of its metrics: its own reports, event files, printed lines, or a tracker.

The same loss often comes several ways: printed, and given to one or two trackers.  Each metric belongs to the source that
told it first, so that no chart shows it twice.  What a run reports itself always counts.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from orchestrator.agent.telemetry.metric_lines import ParsedBatch
from orchestrator.store.metrics.writer import Point

MOST_NAMES = 500  # with a known source
REPORTS, PRINTED = "reports", "printed"
_SEPARATORS = re.compile(r"[^a-z0-9]+")


class Sources:
    """The source of each metric of one attempt."""

    def __init__(self, stored: Mapping[str, str]) -> None:
        self.by_name = dict(stored)

    def claim(self, points: Iterable[Point]) -> None:
        """Note metrics that the run reports itself."""
        for name in {point.name for point in points}:
            self._note(REPORTS, _canonical(name))

    def admits(self, source: str, name: str) -> bool:
        """Whether a metric may come from this source; the first one to ask has it."""
        key = _canonical(name)
        return self.by_name.get(key) == source or (key not in self.by_name and self._note(source, key))

    def add_tracked(self, batch: ParsedBatch) -> int | None:
        """Add the values of trackers that come no other way to the points; returns the last step of any."""
        batch.points += [point for tracker, point in batch.tracked if self.admits(tracker, point.name)]
        return max((point.step for _, point in batch.tracked), default=None)

    def _note(self, source: str, key: str) -> bool:
        if key in self.by_name or len(self.by_name) < MOST_NAMES:
            self.by_name[key] = source
        return True


@lru_cache(maxsize=2 * MOST_NAMES)
def _canonical(name: str) -> str:
    """One spelling for names of one metric: a printed ``loss`` is ``train/loss`` to a tracker, ``eval_loss`` is ``eval/loss``."""
    return _SEPARATORS.sub("_", name.lower().removeprefix("train/")).strip("_")
