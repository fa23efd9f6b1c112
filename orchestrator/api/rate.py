"""How many requests one person may send; a script that runs wild must not take the server from the others (T23)."""

import threading
import time
from collections.abc import Callable

from orchestrator.exceptions import TooMany

A_SECOND = 500.0  # far above what any client of ours sends; each web process counts for itself
BURST = 3000.0
MOST_PEOPLE = 10_000  # remembered at once


class Rate:
    """A bucket for each person that fills at a steady pace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[int, tuple[float, float]] = {}  # by person: what is left, and when that was

    def take(self, user_id: int) -> None:
        """Count one request.

        Raises:
            TooMany: the bucket is empty.
        """
        now = self._clock()
        with self._lock:
            left, at = self._buckets.get(user_id, (BURST, now))
            left = min(BURST, left + (now - at) * A_SECOND)
            if left >= 1:
                self._remember(user_id, left - 1, now)
                return
        raise TooMany(
            f"More than {A_SECOND:.0f} requests a second come from you; wait a moment, then send them more slowly.",
            retry_after_s=1.0,
        )

    def _remember(self, user_id: int, left: float, now: float) -> None:
        if len(self._buckets) >= MOST_PEOPLE and user_id not in self._buckets:
            self._buckets.clear()  # a full bucket for everybody is harmless
        self._buckets[user_id] = (left, now)


requests = Rate()
