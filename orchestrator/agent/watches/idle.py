"""Jobs that hold devices and leave them unused: noticed, told to their owners, and by the pool's rule stopped."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F

from berth import words
from orchestrator.devices.types import Reading
from orchestrator.jobs import lifecycle
from orchestrator.models import Job, JobState, Lease

AT_WORK_PERCENT = 1.0  # what a driver shows for nothing at all
COUNTED_FROM_S = 60.0  # shorter pauses belong to training: data, evaluation, a checkpoint


@dataclass(slots=True)
class _Quiet:
    """A lease whose device does nothing."""

    since_s: float
    counted_s: float = 0.0  # of it already in the lease's row


class IdleWatch:
    """Call ``note`` with every round of readings."""

    def __init__(self) -> None:
        self._quiet: dict[int, _Quiet] = {}  # by lease
        self._told: set[int] = set()  # attempts whose owner was warned

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease], now: datetime, now_s: float) -> None:
        """Take in one round.

        Args:
            leases: all that are active, with attempt, job and pool.
            now_s: of a clock that only goes forward.
        """
        at_work = {
            reading.device_id: reading.utilization_percent is None
            or reading.utilization_percent >= AT_WORK_PERCENT
            for reading in readings
            if not (reading.stale or reading.lost)
        }
        by_attempt: dict[int, list[Lease]] = defaultdict(list)
        for lease in leases:
            if lease.attempt.job.state == JobState.RUNNING and lease.device_id in at_work:
                self._follow(lease, at_work[lease.device_id], now, now_s)
                by_attempt[lease.attempt_id].append(lease)
        known = {lease.pk for lease in leases}
        self._quiet = {pk: quiet for pk, quiet in self._quiet.items() if pk in known}
        self._told &= {lease.attempt_id for lease in leases}
        for attempt_id, held in by_attempt.items():
            self._judge(attempt_id, held, now, now_s)

    def _follow(self, lease: Lease, at_work: bool, now: datetime, now_s: float) -> None:
        quiet = self._quiet.get(lease.pk)
        if at_work:
            self._quiet.pop(lease.pk, None)
            return
        if quiet is None:
            since = lease.attempt.job.idle_since  # noticed before the agent was started again
            before_s = max(0.0, (now - since).total_seconds()) if since else 0.0
            self._quiet[lease.pk] = _Quiet(now_s - before_s, counted_s=before_s)
            return
        lasted_s = now_s - quiet.since_s
        if lasted_s - quiet.counted_s >= COUNTED_FROM_S:
            Lease.objects.filter(pk=lease.pk).update(idle_s=F("idle_s") + lasted_s - quiet.counted_s)
            quiet.counted_s = lasted_s

    def _judge(self, attempt_id: int, held: Sequence[Lease], now: datetime, now_s: float) -> None:
        """A job is idle when all of its devices are: with one at work, the others wait for it."""
        job = held[0].attempt.job
        quiet = [self._quiet.get(lease.pk) for lease in held]
        if None in quiet:
            if job.idle_since is not None:
                Job.objects.filter(pk=job.pk).update(idle_since=None)
                lifecycle.announce(job)
            self._told.discard(attempt_id)
            return
        lasted_s = min(now_s - each.since_s for each in quiet if each is not None)
        pool = job.pool
        if pool.idle_stop_after_s and lasted_s >= pool.idle_stop_after_s:
            lifecycle.stop_by_policy(
                job,
                text=f"Its devices did nothing for {words.duration(lasted_s)}; pool {pool} stops such jobs.",
            )
        elif pool.idle_after_s and lasted_s >= pool.idle_after_s and attempt_id not in self._told:
            self._told.add(attempt_id)
            if job.idle_since is None:
                self._warn(job, lasted_s, now)

    def _warn(self, job: Job, lasted_s: float, now: datetime) -> None:
        stop_s = job.pool.idle_stop_after_s
        then = f" It is stopped after {words.duration(stop_s)} of that." if stop_s else ""
        text = f"Holds its devices and has not used them for {words.duration(lasted_s)}.{then}"
        Job.objects.filter(pk=job.pk).update(idle_since=now - timedelta(seconds=lasted_s))
        lifecycle.remark(job, text, actor="idle watch", now=now)
