"""When to save: as often as its measured cost allows, and when a signal asks for it.

The cost of a checkpoint is the time that the training waits for the copy, plus the slowdown of steps while
the copy is written (CheckFreq, Mohan et al., FAST 2021).
"""

import os
import signal
import time
from collections import deque
from statistics import median
from types import FrameType

MOST_PERCENT = 1.5  # of the time; below the promised 2
LEAST_S, MOST_S = 5.0, 600.0
FIRST_S = 30.0  # before the first save was measured
_KEPT_STEPS = 64  # without a concurrent write
_KEPT_SAVES = 3


class SavePolicy:
    """Adapts the interval between the saves of a training; times are seconds of a monotonic clock."""

    def __init__(
        self, *, most_percent: float = MOST_PERCENT, most_lost_s: float = MOST_S, now_s: float | None = None
    ) -> None:
        self.interval_s = min(FIRST_S, most_lost_s)
        self._most_share = most_percent / 100
        self._most_lost_s = most_lost_s
        self._saved_s = time.monotonic() if now_s is None else now_s
        self._undisturbed_s: deque[float] = deque(maxlen=_KEPT_STEPS)
        self._costs: deque[float] = deque(maxlen=_KEPT_SAVES)

    def note_step(self, step_s: float, *, writing: bool) -> None:
        """Record a step; ``writing`` says whether a checkpoint was being written during it."""
        if not writing:
            self._undisturbed_s.append(step_s)
        elif self._costs and self._undisturbed_s:
            self._costs[-1] += max(0.0, step_s - median(self._undisturbed_s))
            self._set_interval()

    def note_save(self, stall_s: float, now_s: float | None = None) -> None:
        """Record a save for which the training waited ``stall_s``; writing it may still slow down steps."""
        self._saved_s = time.monotonic() if now_s is None else now_s
        self._costs.append(stall_s)
        self._set_interval()

    def is_due(self, now_s: float | None = None) -> bool:
        return (time.monotonic() if now_s is None else now_s) - self._saved_s >= self.interval_s

    def _set_interval(self) -> None:
        # The costliest of the last few: a single save on an idle disk would be too optimistic.
        wanted_s = max(self._costs) / self._most_share
        self.interval_s = min(max(wanted_s, LEAST_S), self._most_lost_s)


class StopRequest:
    """Remembers SIGTERM (save and stop) and SIGUSR1 (save and continue) until the step has ended."""

    def __init__(self) -> None:
        self.stop = False
        self.save = False
        self._pid = os.getpid()
        self._previous: dict[int, signal._HANDLER] = {}

    def listen(self) -> None:
        """Take over both signals; only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            self._previous[number] = signal.signal(number, self._note)

    def leave(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            if handler is not None:  # None: not set from Python, so it cannot be restored
                signal.signal(number, handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child must die of SIGTERM
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGTERM:
            self.stop = True
        else:
            self.save = True
