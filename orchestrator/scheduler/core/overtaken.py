"""The latest start of a gang that newcomers overtake.

A gang that had its trial needs several devices at once, and the trial of every later job comes before it: no list of
present work bounds its start.  Its waiting does: from a known moment on it goes ahead of whoever came later
(``Ranking.in_front_from``).  Then only those are before it that came earlier or have a higher priority, and those that
may not be stopped.  What they can still take is added up once for all gangs of a pass.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from orchestrator.scheduler.core.estimate import end_of, remaining_s
from orchestrator.scheduler.core.forecast import Prospect
from orchestrator.scheduler.core.ranked_pass import RankedPass
from orchestrator.scheduler.core.ranking import trial_s
from orchestrator.scheduler.core.types import Job, Policy, QueuedJob, RunningJob

_LOST = 2.0  # gangs in any order leave at most every second device-second idle (Garey and Graham, 1975)


class _Before(NamedTuple):
    """What jobs can take before another, in seconds of the whole pool."""

    busy_s: float = 0.0
    longest_s: float = 0.0
    silent: float = 0.0  # pools full of jobs that report nothing ...
    silent_since: float = 0.0  # ... when they came, each weighed with its part of the pool, added up
    endless: Job | None = None  # nobody knows when it ends

    def and_then(self, other: "_Before") -> "_Before":
        return _Before(
            self.busy_s + other.busy_s,
            max(self.longest_s, other.longest_s),
            self.silent + other.silent,
            self.silent_since + other.silent_since,
            self.endless or other.endless,
        )


class Overtaken:
    """Knows all jobs of a pool, those that wait and those that run."""

    def __init__(self, part: RankedPass, everyone: Iterable[Job], now: float, policy: Policy) -> None:
        self._part = part
        self._now = now
        self._policy = policy
        self._jobs = sorted(everyone, key=_turn)
        staying = [job for job in self._jobs if not job.preemptible]
        self._staying_s = max((self._most_s(job) or 0.0 for job in staying), default=0.0)
        self._endless = [job for job in staying if self._most_s(job) is None]
        self._lines: dict[int, tuple[Sequence[tuple[float, str]], Sequence[_Before]]] = {}

    def prospect(self, job: Job, in_the_way: tuple[Job, ...], stop_s: float) -> Prospect:
        """Its range while nobody of a higher priority comes.

        Args:
            in_the_way: who is shown as holding its devices.
            stop_s: how long stopping takes.
        """
        front = self._part.ranking.in_front_from(job)
        before = self._before(job)
        endless = before.endless or self._blocking(job)
        if front is None or endless is not None:
            return Prospect(None, None, in_the_way, endless)
        front = max(front, self._now)
        # Who reports nothing is in front for a part of all its waiting, which goes on meanwhile.
        part = self._part.ranking.front_part() * _LOST
        if part * before.silent >= 1:
            return Prospect(None, None, in_the_way)
        silent_s = part * (before.silent * front - before.silent_since)
        ahead_s = (_LOST * before.busy_s + before.longest_s + silent_s) / (1 - part * before.silent)
        return Prospect(self._now, front + ahead_s + self._staying_s + stop_s, in_the_way)

    def _most_s(self, job: Job) -> float | None:
        latest = end_of(job, self._now, self._policy).latest
        return None if latest is None else latest - self._now

    def _before(self, job: Job) -> _Before:
        """Those of a higher priority, and those that came earlier."""
        if job.priority not in self._lines:
            above = [self._taking(one, peer=False) for one in self._jobs if one.priority > job.priority]
            peers = [one for one in self._jobs if one.priority == job.priority]
            taking = [self._taking(one, peer=True) for one in peers]
            first = _sum(above)
            found = list(accumulate(taking, _Before.and_then, initial=first))
            self._lines[job.priority] = [_turn(one) for one in peers], found
        turns, sums = self._lines[job.priority]
        return sums[bisect_left(turns, _turn(job))]

    def _taking(self, job: Job, *, peer: bool) -> _Before:
        part = min(1.0, self._part.ranking.units(job.gpus, job.memory_bytes) / max(1.0, self._part.units))
        if peer and job.preemptible and remaining_s(job) is None:
            trial = max(0.0, trial_s(job, self._policy) - job.ran_s)
            return _Before(part * trial, trial, part, part * job.submitted)
        most_s = self._most_s(job)
        if most_s is None:
            return _Before(endless=job)
        return _Before(part * most_s, most_s)

    def _blocking(self, job: Job) -> Job | None:
        """One that may not be stopped, ends nobody knows when, and leaves too few devices to the job."""
        ids = {one.id for one in self._endless}
        waiting = [one for one in self._endless if isinstance(one, QueuedJob) and one.id != job.id]
        taken = {
            share.device_id for one in self._endless if isinstance(one, RunningJob) for share in one.shares
        }
        free = Counter(device.node for id_, device in self._part.room.usable.items() if id_ not in taken)
        most = free.total() if self._policy.span_nodes else max(free.values(), default=0)
        if waiting or (ids and most < job.gpus):
            return next((one for one in self._endless if one.id != job.id), None)
        return None


def _turn(job: Job) -> tuple[float, str]:
    return (job.submitted, job.id)


def _sum(parts: Iterable[_Before]) -> _Before:
    total = _Before()
    for part in parts:
        total = total.and_then(part)
    return total
