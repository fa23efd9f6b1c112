"""How many requests one person may send; a script that runs wild must not take the server from the others (T23)."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings

from orchestrator.exceptions import TooMany

logger = logging.getLogger(__name__)

A_SECOND = 500.0  # far above what any client of ours sends
BURST = 3000.0
MOST_PEOPLE = 10_000  # remembered at once
SHARE_EVERY = 50  # requests of one person; sharing costs one exchange with Redis
SHARE_AFTER_S = 1.0
KEPT_S = 60  # of a count in Redis that nobody raises
REDIS_PATIENCE_S = 0.05
REDIS_REST_S = 5.0  # how long a Redis that failed is not asked again


@dataclass(slots=True)
class Bucket:
    """What one person may still send, as this process knows it."""

    left: float
    at: float  # when that was
    unshared: int = 0  # requests that the other processes do not know of
    shared_at: float = 0.0
    shared: int = 0  # by this process, ever
    total: int = 0  # of all processes, as Redis said last
    of_others: int | None = None  # what they had sent by then; None before we shared


class Counts:
    """How much each person sent to all web processes together, in Redis; its absence is no failure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, url: str | None = None) -> None:
        self._clock = clock
        self._url = url
        self._client: Any = None
        self._rests_until = float("-inf")

    def add(self, user_id: int, count: int) -> int | None:
        """The person's total after these; None where Redis does not answer."""
        if self._clock() < self._rests_until:
            return None
        try:
            name = f"berth:rate:{user_id}"
            with self._connect().pipeline(transaction=False) as both:
                total, _ = both.incrby(name, count).expire(name, KEPT_S).execute()
        except redis.RedisError as error:
            self._rests_until = self._clock() + REDIS_REST_S
            logger.debug("Rates are counted by each web process for itself: %s", error)
            return None
        return int(total)

    def _connect(self) -> Any:
        if self._client is None:
            self._client = redis.Redis.from_url(
                self._url or settings.ENVIRONMENT.redis_url,
                socket_timeout=REDIS_PATIENCE_S,
                socket_connect_timeout=REDIS_PATIENCE_S,
            )
        return self._client


class Rate:
    """A bucket for each person that fills at a steady pace; what they send to other processes comes out of it, too.

    Processes learn of each other's requests some tens late, and not at all while Redis is away: then each
    process counts for itself.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, counts: Counts | None = None) -> None:
        self._clock = clock
        self._counts = counts or Counts(clock)
        self._lock = threading.Lock()
        self._buckets: dict[int, Bucket] = {}

    def take(self, user_id: int) -> None:
        """Count one request.

        Raises:
            TooMany: the bucket is empty.
        """
        now = self._clock()
        with self._lock:
            bucket = self._bucket(user_id, now)
            bucket.left = min(BURST, bucket.left + (now - bucket.at) * A_SECOND)
            bucket.at = now
            may = bucket.left >= 1
            if may:
                bucket.left -= 1
                bucket.unshared += 1
            unshared = self._due(bucket, now)
        if unshared:
            self._share(user_id, bucket, unshared)
        if not may:
            raise TooMany(
                f"More than {A_SECOND:.0f} requests a second come from you; wait a moment, then send them more slowly.",
                retry_after_s=1.0,
            )

    def _bucket(self, user_id: int, now: float) -> Bucket:
        if user_id not in self._buckets:
            if len(self._buckets) >= MOST_PEOPLE:
                self._buckets.clear()  # a full bucket for everybody is harmless
            self._buckets[user_id] = Bucket(BURST, now, shared_at=now)
        return self._buckets[user_id]

    @staticmethod
    def _due(bucket: Bucket, now: float) -> int:
        """How many requests to tell the others of now; the caller alone tells them."""
        if bucket.unshared < SHARE_EVERY and now - bucket.shared_at < SHARE_AFTER_S:
            return 0
        unshared, bucket.unshared, bucket.shared_at = bucket.unshared, 0, now
        bucket.shared += unshared
        return unshared

    def _share(self, user_id: int, bucket: Bucket, count: int) -> None:
        """Outside the lock: only the request that shares waits for Redis."""
        total = self._counts.add(user_id, count)
        if total is None:
            return
        with self._lock:
            # Too few while another thread of ours shares; later it is made up.
            of_others = total - bucket.shared
            if bucket.of_others is None or total < bucket.total:  # the first time, or Redis forgot
                bucket.of_others = of_others
            elif of_others > bucket.of_others:
                bucket.left = max(-BURST, bucket.left - (of_others - bucket.of_others))
                bucket.of_others = of_others
            bucket.total = total


requests = Rate()
