"""How often to save: as often as a small share of the time pays for, by the cost that was measured.

The idea is CheckFreq's (Mohan et al., FAST 2021): the cost of a checkpoint is what the training
waits for the copy, and what its steps take longer while the copy is written.
"""

import time
from collections import deque
from statistics import median

MOST_PERCENT = 1.5  # of the time; leaves room below the promised 2
LEAST_S, MOST_S = 5.0, 600.0
FIRST_S = 30.0  # before anything is known
_REMEMBERED = 64  # undisturbed steps
_SAVES = 3


class SavePolicy:
    """The interval between saves of one training; times are in seconds of a monotonic clock."""

    def __init__(
        self, *, most_percent: float = MOST_PERCENT, most_lost_s: float = MOST_S, now_s: float | None = None
    ) -> None:
        self.interval_s = min(FIRST_S, most_lost_s)
        self._most_share = most_percent / 100
        self._most_lost_s = most_lost_s
        self._saved_s = time.monotonic() if now_s is None else now_s
        self._calm: deque[float] = deque(maxlen=_REMEMBERED)
        self._costs: deque[float] = deque(maxlen=_SAVES)

    def note_step(self, step_s: float, *, writing: bool) -> None:
        """A step took ``step_s``; ``writing`` tells whether a checkpoint was being written meanwhile."""
        if not writing:
            self._calm.append(step_s)
        elif self._costs and self._calm:
            self._costs[-1] += max(0.0, step_s - median(self._calm))
            self._set_interval()

    def note_save(self, stall_s: float, now_s: float | None = None) -> None:
        """A save began, for which the training waited ``stall_s``; its writing may still disturb."""
        self._saved_s = time.monotonic() if now_s is None else now_s
        self._costs.append(stall_s)
        self._set_interval()

    def is_due(self, now_s: float | None = None) -> bool:
        return (time.monotonic() if now_s is None else now_s) - self._saved_s >= self.interval_s

    def _set_interval(self) -> None:
        # The dearest of the last few: one that met an idle disk must not promise too much.
        wanted_s = max(self._costs) / self._most_share
        self.interval_s = min(max(wanted_s, LEAST_S), self._most_lost_s)
