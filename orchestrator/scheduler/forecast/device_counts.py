"""When a job would start and finish with other numbers of devices."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from orchestrator.models import Job
from orchestrator.scheduler import core
from orchestrator.scheduler.forecast.durations import ExpectedDuration, expected_durations

LONGEST_S = 0.03  # of CPU time; remaining numbers are skipped; reached when some thousand jobs wait


@dataclass(frozen=True, slots=True)
class DeviceCountOption:
    """A job on this number of devices; without an end if its start or duration is unknown."""

    gpus: int
    starts_now: bool
    start_earliest: datetime | None
    start_latest: datetime | None
    lasts: ExpectedDuration | None
    is_soonest: bool = False  # ends first among several options with known ends

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
) -> tuple[DeviceCountOption, ...]:
    """Options: the requested number of devices first, then powers of two up to the size of a node of the pool.

    Args:
        job: unsaved, waits in ``state``, which holds the waiting jobs of its pool only.
        decisions: the scheduler's answer for the job as requested.
    """
    starts = dict(_starts(job, state, decisions, policy))
    lasts = expected_durations(job, starts)
    options = [DeviceCountOption(count, *start, lasts.get(count)) for count, start in starts.items()]
    ends = [(one.end_latest, one.gpus) for one in options if one.end_latest is not None]
    soonest = min(ends)[1] if len(ends) > 1 else None
    return tuple(replace(one, is_soonest=one.gpus == soonest) for one in options)


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
    if job.spec_fields.get("gpus") == 0:
        return ()
    nodes = [device.node for device in state.devices if device.pool == job.pool_id]
    most = max(map(nodes.count, set(nodes)), default=0)
    return [1 << at for at in range(most.bit_length()) if 1 << at != job.gpus]


def _with(state: core.State, job_id: str, count: int) -> core.State:
    queued = tuple(
        replace(job, gpus=count, constraints=replace(job.constraints, slices=count == 1))
        if job.id == job_id
        else job
        for job in state.queued
    )
    return replace(state, queued=queued)


def _start(job_id: str, decisions: core.Decisions, now_s: float) -> _Start | None:
    """When the job would start; None if the pool can never fit it."""
    now = datetime.fromtimestamp(now_s, UTC)
    if any(start.job_id == job_id for start in decisions.start):
        return True, now, now
    wait = next((wait for wait in decisions.wait if wait.job_id == job_id), None)
    if wait is None or wait.code == core.WaitCode.IMPOSSIBLE:
        return None
    moments = [
        None if at is None else datetime.fromtimestamp(at, UTC)
        for at in (wait.start_earliest, wait.start_latest)
    ]
    return False, moments[0], moments[1]
