"""How many live views one person has open, in all web processes together.

Each process writes its own number into a hash of the person in Redis, with the time at which it was true, and does
so again while it lives: what a process that died had open is forgotten after a while.  While Redis is away each
process counts for itself.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis.asyncio
from django.conf import settings

logger = logging.getLogger(__name__)

TOLD_EVERY_S = 10.0
BELIEVED_S = 25.0  # after two tellings that failed
PATIENCE_S = 0.5
REST_S = 5.0  # how long a Redis that failed is not asked again


class OpenSockets:
    """The live views of one process, by person."""

    def __init__(self, process: str, clock: Callable[[], float] = time.time, url: str | None = None) -> None:
        self._process, self._clock, self._url = process, clock, url
        self._own: Counter[int] = Counter()
        self._rests_until = float("-inf")

    async def enter(self, user_id: int) -> bool:
        """Count one more; False, and nothing counted, where the person has as many as there may be."""
        most = settings.ENVIRONMENT.sockets_a_person
        if self._own[user_id] >= most:
            return False
        self._own[user_id] += 1  # before anything is awaited: others may enter then
        try:
            if self._own[user_id] + await self._of_others(user_id) <= most:
                return True
        except asyncio.CancelledError:
            self._own[user_id] -= 1
            raise
        await self.leave(user_id)
        return False

    async def leave(self, user_id: int) -> None:
        self._own[user_id] -= 1
        await self._exchange([user_id])
        if self._own[user_id] <= 0:
            del self._own[user_id]

    async def tell(self) -> None:
        """Say again what is open here, before the others stop believing it."""
        await self._exchange(list(self._own))

    async def _of_others(self, user_id: int) -> int:
        oldest = self._clock() - BELIEVED_S
        told = [
            value.split()
            for process, value in (await self._exchange([user_id])).items()
            if process != self._process
        ]
        return sum(int(count) for count, at in told if float(at) >= oldest)

    async def _exchange(self, user_ids: list[int]) -> dict[str, str]:
        """Tell our numbers of these people; returns what all processes told of the last one, if Redis answers."""
        now = self._clock()
        if not user_ids or now < self._rests_until:
            return {}
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                self._connect() as client,
                client.pipeline() as all_at_once,
            ):
                for user_id in user_ids:
                    name = f"berth:sockets:{user_id}"
                    all_at_once.hset(name, self._process, f"{self._own[user_id]} {now}")
                    all_at_once.expire(name, int(2 * BELIEVED_S))
                all_at_once.hgetall(name)
                told: dict[str, str] = (await all_at_once.execute())[-1]
        except (redis.RedisError, OSError) as error:  # a timeout is an OSError
            self._rests_until = now + REST_S
            logger.debug("Live views are counted by each web process for itself: %s", error)
            return {}
        return told

    def _connect(self) -> Any:
        return redis.asyncio.Redis.from_url(
            self._url or settings.ENVIRONMENT.redis_url, decode_responses=True
        )
