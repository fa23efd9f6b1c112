"""What a service answered in the last minute, counted in the web process."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

WINDOW_S = 60.0
MOST = 20_000  # answers that are remembered; beyond it the window is shorter


class TrafficRecord(TypedDict):
    """The last minute as JSON; times count answers that succeeded."""

    requests_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors: int
    refused: int
    late: int


@dataclass(frozen=True, slots=True)
class _Answer:
    at: float
    status: int
    took_s: float


@dataclass
class Traffic:
    """Call ``count`` for each answer."""

    clock: Callable[[], float] = time.monotonic
    _answers: deque[_Answer] = field(default_factory=lambda: deque(maxlen=MOST))

    def count(self, status: int, took_s: float) -> None:
        """Count an answer; 429 was refused in time, 504 came too late, other 5xx are errors."""
        self._answers.append(_Answer(self.clock(), status, took_s))

    def as_json(self) -> TrafficRecord:
        newest = self.clock()
        while self._answers and newest - self._answers[0].at > WINDOW_S:
            self._answers.popleft()
        times_ms = sorted(1000 * each.took_s for each in self._answers if each.status < 400)
        statuses = [each.status for each in self._answers]
        return {
            "requests_per_s": round(len(statuses) / WINDOW_S, 3),
            "p50_ms": _at(times_ms, 0.5),
            "p99_ms": _at(times_ms, 0.99),
            "errors": sum(status >= 500 and status != 504 for status in statuses),
            "refused": statuses.count(429),
            "late": statuses.count(504),
        }


def _at(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else None
