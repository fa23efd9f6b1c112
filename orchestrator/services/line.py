"""The line before a service: who is served when, and who is refused at once because it would be too late.

Each replica serves as many requests at once as its program can, usually one, so how long an answer takes is known: the
99th percentile of the newest ones. A request that cannot be answered by its deadline is refused when it comes, rather than
being late and making others late (Gujarati et al. 2020, "Serving DNNs like Clockwork", OSDI).
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

REMEMBERED = 100  # answers by whose times the next one is predicted
SELDOM_LONGER = 0.99  # the share of them that took no longer than predicted
LEAST_KNOWN = 5  # before that nothing is predicted
LONGEST_RETRY_S = 60.0

R = TypeVar("R", bound=Hashable)  # what a replica is known by


class Late(Exception):
    """The request cannot be answered by its deadline."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"it would wait {wait_s:.2f} s")
        self.wait_s = wait_s

    @property
    def retry_s(self) -> int:
        """Seconds after which a new request might be in time, for Retry-After."""
        return math.ceil(min(max(self.wait_s, 1.0), LONGEST_RETRY_S))


class Full(Late):
    """As many requests wait as may."""


@dataclass(eq=False)
class _Waiting(Generic[R]):
    """One request in the line."""

    deadline: float
    turn: asyncio.Future[R]


@dataclass
class Line(Generic[R]):
    """The requests of one service in this process.

    Args:
        parallel: requests at once in one replica.
        most_waiting: requests that may wait.
        clock: seconds, never backwards.
    """

    parallel: int = 1
    most_waiting: int = 100
    clock: Callable[[], float] = time.monotonic
    busy: Counter[R] = field(default_factory=Counter)  # requests by replica
    _replicas: tuple[R, ...] = ()
    _waiting: deque[_Waiting[R]] = field(default_factory=deque)
    _took_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _since: dict[R, list[float]] = field(default_factory=dict)  # when each request of a replica began

    @property
    def load(self) -> int:
        """The requests that are served or wait now."""
        return sum(self.busy.values()) + self.waiting

    @property
    def waiting(self) -> int:
        return sum(not each.turn.done() for each in self._waiting)

    def answer_s(self) -> float | None:
        """How long an answer takes, seldom longer; None while too few are known."""
        if len(self._took_s) < LEAST_KNOWN:
            return None
        ordered = sorted(self._took_s)
        return ordered[math.ceil(SELDOM_LONGER * len(ordered)) - 1]

    def set_replicas(self, replicas: Iterable[R]) -> None:
        """Name the replicas that get requests from now on; those that serve one still end it."""
        self._replicas = tuple(replicas)
        self._serve_next()

    async def turn(self, deadline: float) -> R:
        """Wait for a replica that is free.

        Args:
            deadline: of the answer, by ``clock``.

        Raises:
            Late, Full: at once, or when the time that is left became too short.
        """
        self._check(deadline)
        waiting: _Waiting[R] = _Waiting(deadline, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._serve_next()
        try:
            async with asyncio.timeout(max(0.0, deadline - self.clock())):
                return await waiting.turn
        except BaseException as error:
            self._leave(waiting)
            if isinstance(error, TimeoutError):
                raise Late(self.answer_s() or 0.0) from None
            raise

    def _leave(self, waiting: _Waiting[R]) -> None:
        """Take somebody out of the line who no longer waits; a turn that has just come goes to the next."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        turn = waiting.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.done(turn.result(), None)

    def done(self, replica: R, took_s: float | None) -> None:
        """Free the place of a request; ``took_s`` is None where its time says nothing about the next one."""
        self.busy[replica] -= 1
        if begins := self._since.get(replica):
            begins.pop(0)
        if self.busy[replica] <= 0:
            del self.busy[replica]
            self._since.pop(replica, None)
        if took_s is not None:
            self._took_s.append(took_s)
        self._serve_next()

    def wait_s(self) -> float:
        """How long a request that comes now would wait for its turn, as far as it is known."""
        places = len(self._replicas) * self.parallel
        answer_s = self.answer_s()
        if not places or answer_s is None or (free := places - self._serving()) > self.waiting:
            return 0.0
        rounds, now = (self.waiting - max(0, free)) // places, self.clock()
        left = [
            max(0.0, answer_s - (now - began))
            for each in self._replicas
            for began in self._since.get(each, ())
        ]
        return min(left, default=answer_s) + rounds * answer_s

    def _check(self, deadline: float) -> None:
        wait_s = self.wait_s()
        if self.waiting >= self.most_waiting:
            raise Full(wait_s)
        if (answer_s := self.answer_s()) and self._replicas and self.clock() + wait_s + answer_s > deadline:
            raise Late(wait_s)

    def _serving(self) -> int:
        return sum(self.busy[each] for each in self._replicas)

    def _serve_next(self) -> None:
        """Give free places to the requests that have waited longest; one that has become late is refused instead."""
        while self._waiting and (replica := self._free()) is not None:
            waiting = self._waiting.popleft()
            if waiting.turn.done():
                continue
            left_s = waiting.deadline - self.clock()
            if left_s < (self.answer_s() or 0.0):
                waiting.turn.set_exception(Late(0.0))
                continue
            self.busy[replica] += 1
            self._since.setdefault(replica, []).append(self.clock())
            waiting.turn.set_result(replica)

    def _free(self) -> R | None:
        free = [each for each in self._replicas if self.busy[each] < self.parallel]
        return min(free, key=lambda each: self.busy[each], default=None)
