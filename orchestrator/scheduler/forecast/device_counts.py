"""What a job would gain or lose with another number of devices: when it starts, and when it is done."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from orchestrator.models import Job
from orchestrator.scheduler import core
from orchestrator.scheduler.forecast.durations import Lasting, foretell

LONGEST_S = 0.03  # of computing; numbers that are left then are not asked about; reached where some thousand jobs wait


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job on so many devices; its ends are None where its start or how long it runs is not known."""

    gpus: int
    starts_now: bool
    start_earliest: datetime | None
    start_latest: datetime | None
    lasts: Lasting | None
    is_soonest: bool = False  # of several whose ends are known

    @property
    def end_earliest(self) -> datetime | None:
        return self._end(self.start_earliest, self.lasts.low_s if self.lasts else None)

    @property
    def end_latest(self) -> datetime | None:
        return self._end(self.start_latest, self.lasts.high_s if self.lasts else None)

    @staticmethod
    def _end(start: datetime | None, seconds: float | None) -> datetime | None:
        return None if start is None or seconds is None else start + timedelta(seconds=seconds)


def outcomes(
    job: Job, state: core.State, decisions: core.Decisions, policy: core.Policy
) -> tuple[Outcome, ...]:
    """The number that was asked for, first, and powers of two up to what a node of its pool has.

    Args:
        job: unsaved, waits in ``state``, which holds the waiting jobs of its pool only.
        decisions: the answer for the job as it is.
    """
    starts = dict(_starts(job, state, decisions, policy))
    lasts = foretell(job, starts)
    found = [Outcome(count, *start, lasts.get(count)) for count, start in starts.items()]
    known = [(one.end_latest, one.gpus) for one in found if one.end_latest is not None]
    soonest = min(known)[1] if len(known) > 1 else None
    return tuple(replace(one, is_soonest=one.gpus == soonest) for one in found)


_Start = tuple[bool, datetime | None, datetime | None]


def _starts(
    job: Job, state: core.State, decisions: core.Decisions, policy: core.Policy
) -> Iterator[tuple[int, _Start]]:
    asked = _start(str(job.pk), decisions, state.now)
    if asked is not None:
        yield job.gpus, asked
    deadline = time.thread_time() + LONGEST_S
    for count in _counts(job, state):
        if time.thread_time() > deadline:
            return
        decided = core.decide(_with(state, str(job.pk), count), policy)
        if (start := _start(str(job.pk), decided, state.now)) is not None:
            yield count, start


def _counts(job: Job, state: core.State) -> Sequence[int]:
    nodes = [device.node for device in state.devices if device.pool == job.pool_id]
    most = max(map(nodes.count, set(nodes)), default=0)
    return [1 << at for at in range(most.bit_length()) if 1 << at != job.gpus]


def _with(state: core.State, job_id: str, count: int) -> core.State:
    queued = tuple(
        replace(each, gpus=count, constraints=core.ANYWHERE if count == 1 else core.WHOLE_GPUS)
        if each.id == job_id
        else each
        for each in state.queued
    )
    return replace(state, queued=queued)


def _start(job_id: str, decisions: core.Decisions, now_s: float) -> _Start | None:
    """None where the pool can never give so many."""
    now = datetime.fromtimestamp(now_s, UTC)
    if any(each.job_id == job_id for each in decisions.start):
        return True, now, now
    wait = next((each for each in decisions.wait if each.job_id == job_id), None)
    if wait is None or wait.code == core.WaitCode.IMPOSSIBLE:
        return None
    moments = [
        None if at is None else datetime.fromtimestamp(at, UTC)
        for at in (wait.start_earliest, wait.start_latest)
    ]
    return False, moments[0], moments[1]
