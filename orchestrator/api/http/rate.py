"""Limit how fast one person may send requests, so that a runaway script leaves the server to others."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings

from orchestrator.exceptions import Sentence, TooMany

logger = logging.getLogger(__name__)

A_SECOND = 500.0  # far more than our own clients send
BURST = 3000.0
MOST_PEOPLE = 10_000  # remembered at once
SHARE_EVERY = 50  # requests of one person; sharing costs one exchange with Redis
SHARE_AFTER_S = 1.0
KEPT_S = 60  # lifetime of an idle count in Redis
REDIS_PATIENCE_S = 0.05
REDIS_REST_S = 5.0  # pause after Redis failed


@dataclass(slots=True)
class Bucket:
    """One person's remaining requests, as this process counts them."""

    left: float
    at: float  # time of the last update
    unshared: int = 0  # requests not yet reported to the other processes
    shared_at: float = 0.0
    shared: int = 0  # requests that this process has reported so far
    total: int = 0  # of all processes, as of the last exchange
    of_others: int | None = None  # requests of the other processes by then; None before the first exchange


class Counts:
    """Each person's requests to all web processes, counted in Redis; works without Redis, too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, url: str | None = None) -> None:
        self._clock = clock
        self._url = url
        self._client: Any = None
        self._rests_until = float("-inf")

    def add(self, user_id: int | str, count: int) -> int | None:
        """Add to the person's total and return it; None if Redis does not answer."""
        if self._clock() < self._rests_until:
            return None
        try:
            name = f"berth:rate:{user_id}"
            with self._connect().pipeline(transaction=False) as both:
                total, _ = both.incrby(name, count).expire(name, KEPT_S).execute()
        except redis.RedisError as error:
            self._rests_until = self._clock() + REDIS_REST_S
            logger.debug("Each web process now counts request rates on its own: %s", error)
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
    """One token bucket per person, refilled at a steady pace and drained by requests to any process.

    Processes learn of each other's requests after some tens of them. While Redis is away each process counts
    on its own.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        counts: Counts | None = None,
        *,
        a_second: float = A_SECOND,
        burst: float = BURST,
    ) -> None:
        self._clock = clock
        self._a_second, self._burst = a_second, burst
        self._counts = counts or Counts(clock)
        self._lock = threading.Lock()
        self._buckets: dict[int | str, Bucket] = {}

    def take(self, user_id: int | str) -> None:
        """Count one request of a person, or of an address where nobody is signed in.

        Raises:
            TooMany: the bucket is empty.
        """
        now = self._clock()
        with self._lock:
            bucket = self._bucket(user_id, now)
            bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._a_second)
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
                Sentence(
                    "You send more than {a_second:.0f} requests a second. Wait a moment, then send them more slowly.",
                    a_second=self._a_second,
                ),
                retry_after_s=1.0,
            )

    def _bucket(self, user_id: int | str, now: float) -> Bucket:
        if user_id not in self._buckets:
            if len(self._buckets) >= MOST_PEOPLE:
                self._buckets.clear()  # everybody starts with a full bucket again: harmless
            self._buckets[user_id] = Bucket(self._burst, now, shared_at=now)
        return self._buckets[user_id]

    @staticmethod
    def _due(bucket: Bucket, now: float) -> int:
        """Take the number of requests to report now; 0 if none is due. The caller reports them."""
        if bucket.unshared < SHARE_EVERY and now - bucket.shared_at < SHARE_AFTER_S:
            return 0
        unshared, bucket.unshared, bucket.shared_at = bucket.unshared, 0, now
        bucket.shared += unshared
        return unshared

    def _share(self, user_id: int | str, bucket: Bucket, count: int) -> None:
        """Report requests to Redis, outside the lock: only this request waits for it."""
        total = self._counts.add(user_id, count)
        if total is None:
            return
        with self._lock:
            # Too low while another thread reports; the next exchange corrects it.
            of_others = total - bucket.shared
            if (
                bucket.of_others is None or total < bucket.total
            ):  # the first exchange, or Redis lost its counts
                bucket.of_others = of_others
            elif of_others > bucket.of_others:
                bucket.left = max(-self._burst, bucket.left - (of_others - bucket.of_others))
                bucket.of_others = of_others
            bucket.total = total


requests = Rate()
shared_pages = Rate(a_second=10, burst=200)  # of one address, by links that need no account
