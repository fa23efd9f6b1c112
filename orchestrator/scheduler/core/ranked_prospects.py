"""When waiting jobs may start where ranks, not arrivals, decide.

Most jobs: a list schedule of the work that ranks ahead of a job.  Later jobs that will rank higher are not
in it, so the range is as wide as the errors of earlier estimates (``State.start_errors``).

A gang that has had its trial: the trial of every later job goes ahead of it, so no list of present work bounds
its start.  Its waiting time does: from a known moment on it goes ahead of all later jobs
(``Ranking.in_front_from``).  Then only jobs that came earlier, have a higher priority or may not be stopped
can delay it.  The most that those can take is added up once for all gangs of a pass.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import accumulate, islice
from math import ceil, isinf
from typing import NamedTuple

from orchestrator.scheduler.core.ends import SETTLE_S, end_of, remaining_s
from orchestrator.scheduler.core.prospects import Prospect
from orchestrator.scheduler.core.ranked_pass import PoolDecisions, RankedPass
from orchestrator.scheduler.core.ranking import Standing, trial_s
from orchestrator.scheduler.core.types import (
    Job,
    Policy,
    QueuedJob,
    RunningJob,
    State,
)

# Before any estimate was checked: wide, but published, because only published ranges are ever checked.
_UNTAUGHT = (0.0, 4.0)
_SHOWN = 8  # jobs named as being in the way
_LOST = 2.0  # gangs in any order leave at most every second device-second idle (Garey and Graham, 1975)


def outlook(state: State, policy: Policy, part: RankedPass, plan: PoolDecisions) -> dict[str, Prospect]:
    """Prospects of the first waiting jobs of a pool."""
    waiting = list(islice((job for job in plan.order if job.id in plan.codes), policy.predicted_jobs))
    if not waiting:
        return {}
    by_id: dict[str, Job] = {job.id: job for job in (*plan.order, *part.running.values())}
    places = {job.id for job in waiting if job.id not in plan.reserved}
    prospects = {id_: _while_cleared(part, id_, state.now) for id_ in plan.reserved}
    low, high = state.start_errors or _UNTAUGHT
    free_s = [0.0] * max(1, int(part.units))  # when each device has finished the work ahead
    stop_s = SETTLE_S + max((job.grace_s for job in part.running.values()), default=0.0)
    fixed = {job.id for job in part.running.values() if not job.preemptible}
    for id_ in sorted(fixed):  # they stay whatever their rank
        _add_work(free_s, plan.standings[id_], _work_s(by_id[id_], plan.standings[id_], policy))
    gang_starts: GangStarts | None = None
    for standing in plan.ranked:
        if not places:
            break
        id_ = standing.id
        if id_ in fixed:
            continue
        if id_ in places:
            places.remove(id_)
            wait_s = nsmallest(_width(standing, free_s), free_s)[-1]
            in_the_way = _in_the_way(part, plan, standing)
            if _newcomers_pass(by_id[id_], standing):
                gang_starts = gang_starts or GangStarts(part, by_id.values(), state.now, policy)
                prospects[id_] = gang_starts.prospect(by_id[id_], in_the_way, stop_s)
            else:
                wait_s += SETTLE_S  # never 0: a factor of the learned errors could not widen the range
                soonest = 0.0 if isinf(standing.worth) else min(1.0, low)  # room may be made at once
                prospects[id_] = Prospect(
                    state.now + soonest * wait_s,
                    state.now + max(1.0, high) * wait_s + stop_s,
                    in_the_way,
                    foreseen_s=wait_s,
                )
        _add_work(free_s, standing, _work_s(by_id[id_], standing, policy))
    return prospects


def _in_the_way(part: RankedPass, plan: PoolDecisions, standing: Standing) -> tuple[Job, ...]:
    """The first few jobs that run, or start now, and rank ahead."""
    holding = [job for job in part.running.values() if not job.stopping]
    ahead = [
        (plan.standings[job.id], job) for job in (*holding, *part.begun) if plan.standings[job.id] < standing
    ]
    return tuple(job for _, job in nsmallest(_SHOWN, ahead, key=lambda pair: pair[0]))


def _newcomers_pass(job: Job, standing: Standing) -> bool:
    """Whether later jobs go ahead of this one, so that no list of present work bounds its start."""
    return job.gpus > 1 and job.ran_s > 0 and not isinf(standing.worth)


def _width(standing: Standing, free_s: list[float]) -> int:
    return min(len(free_s), max(1, ceil(standing.units)))


def _work_s(job: Job, standing: Standing, policy: Policy) -> float:
    """The work to plan for a job; of a trial only the trial counts, because the rest is ranked afresh after it."""
    if isinf(standing.worth):
        return max(trial_s(job, policy) - job.ran_s, remaining_s(job) or 0.0)
    return 1.0 / standing.worth


def _add_work(free_s: list[float], standing: Standing, work_s: float) -> None:
    """A gang starts when its last device is free; shares of a device take time in proportion."""
    if standing.units < 1:
        heappush(free_s, heappop(free_s) + work_s * standing.units)
        return
    taken = [heappop(free_s) for _ in range(_width(standing, free_s))]
    for _ in taken:
        heappush(free_s, taken[-1] + work_s)


def _while_cleared(part: RankedPass, id_: str, now: float) -> Prospect:
    """The prospect of a job whose devices are being cleared."""
    leaving = part.leaving_for(id_)
    latest = max((now + job.grace_s + SETTLE_S for job in leaving), default=now + SETTLE_S)
    return Prospect(now, latest, leaving)


class _Before(NamedTuple):
    """What other jobs can take before a job starts, in seconds of the whole pool."""

    busy_s: float = 0.0
    longest_s: float = 0.0
    silent: float = 0.0  # silent jobs, in pools full of them
    silent_since: float = 0.0  # the sum of their submit times, each weighted by its share of the pool
    endless: Job | None = None  # a job of unknown end

    def and_then(self, other: "_Before") -> "_Before":
        return _Before(
            self.busy_s + other.busy_s,
            max(self.longest_s, other.longest_s),
            self.silent + other.silent,
            self.silent_since + other.silent_since,
            self.endless or other.endless,
        )


class GangStarts:
    """Bounds the starts of gangs from all waiting and running jobs of a pool."""

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
        """The start range of a gang, valid while no job of a higher priority comes.

        Args:
            in_the_way: the jobs shown as holding its devices.
            stop_s: how long stopping jobs takes.
        """
        front = self._part.ranking.in_front_from(job)
        before = self._before(job)
        endless = before.endless or self._blocking(job)
        if front is None or endless is not None:
            return Prospect(None, None, in_the_way, endless)
        front = max(front, self._now)
        # A silent job is in front for a share of all its waiting time, which goes on while this gang waits.
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
        """What jobs of a higher priority and earlier jobs of the same priority can take."""
        if job.priority not in self._lines:
            above = [self._taking(one, peer=False) for one in self._jobs if one.priority > job.priority]
            peers = [one for one in self._jobs if one.priority == job.priority]
            taking = [self._taking(one, peer=True) for one in peers]
            first = _sum(above)
            totals = list(accumulate(taking, _Before.and_then, initial=first))
            self._lines[job.priority] = [_turn(one) for one in peers], totals
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
        """A job of unknown end that may not be stopped and leaves too few devices for this gang."""
        ids = {one.id for one in self._endless}
        waiting = [one for one in self._endless if isinstance(one, QueuedJob) and one.id != job.id]
        taken = {
            share.device_id for one in self._endless if isinstance(one, RunningJob) for share in one.shares
        }
        free = Counter(device.node for id_, device in self._part.room.usable.items() if id_ not in taken)
        spans = self._policy.span_nodes or bool(self._part.room.span(job))
        most = free.total() if spans else max(free.values(), default=0)
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
