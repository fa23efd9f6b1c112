"""Jobs that leave their devices unused, and sessions that do nothing: owners are warned, and the pool's rule may stop jobs
and put sessions to sleep.  Replicas of services come and go by the rules of their service.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F

from orchestrator.agent.watches.session_work import SessionWork
from orchestrator.devices.types import Reading
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Attempt, Job, JobState, Lease

AT_WORK_PERCENT = 1.0  # idle devices show less
COUNTED_FROM_S = 60.0  # shorter pauses are a normal part of training: data, evaluation, a checkpoint


@dataclass(slots=True)
class _Quiet:
    """A lease whose device is idle."""

    since_s: float
    counted_s: float = 0.0  # already added to the lease's row


class IdleWatch:
    """Call ``note`` with every round of readings."""

    def __init__(self) -> None:
        self._quiet: dict[int, _Quiet] = {}  # by lease
        self._warned: set[int] = set()  # attempts whose owner was warned
        self.sessions = SessionWork()

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease], now: datetime, now_s: float) -> None:
        """Take one round of readings.

        Args:
            leases: all active ones, with attempt, job and pool.
            now_s: monotonic clock.
        """
        shown = {
            reading.device_id: reading.utilization_percent
            for reading in readings
            if not (reading.stale or reading.lost)
        }
        running = [each for each in leases if each.attempt.job.state == JobState.RUNNING]
        sessions = {each.attempt_id: each.attempt for each in running if each.attempt.job.is_session}
        self.sessions.look_in_time(list(sessions.values()), now_s)
        working = self._working_sessions(sessions, running, leases, shown, now)
        by_attempt: dict[int, list[Lease]] = defaultdict(list)
        for lease in running:
            if lease.device_id in shown:
                percent = shown[lease.device_id]
                works = percent is None or percent >= AT_WORK_PERCENT
                if lease.attempt_id in sessions:
                    works = lease.attempt_id in working
                self._follow(lease, works, now, now_s)
                by_attempt[lease.attempt_id].append(lease)
        active = {lease.pk for lease in leases}
        self._quiet = {pk: quiet for pk, quiet in self._quiet.items() if pk in active}
        self._warned &= {lease.attempt_id for lease in leases}
        for attempt_id, held in by_attempt.items():
            self._judge(attempt_id, held, now, now_s)

    def _working_sessions(
        self,
        sessions: Mapping[int, Attempt],
        running: Iterable[Lease],
        held: Iterable[Lease],
        shown: Mapping[str, float | None],
        now: datetime,
    ) -> set[int]:
        """The attempts among ``sessions`` that are at work on a device or beside it.

        A device that shows no utilisation, such as a CPU slot, is no sign; a device that cannot be read is one. What a
        shared device shows may be its other holders' work, so it is no sign either.
        """
        holders = Counter(lease.device_id for lease in held)
        busy = {
            lease.attempt_id
            for lease in running
            if lease.device_id not in shown
            or (holders[lease.device_id] == 1 and (shown[lease.device_id] or 0.0) >= AT_WORK_PERCENT)
        }
        return {
            pk
            for pk, attempt in sessions.items()
            if self.sessions.note(attempt, device_works=pk in busy, now=now)
        }

    def _follow(self, lease: Lease, at_work: bool, now: datetime, now_s: float) -> None:
        quiet = self._quiet.get(lease.pk)
        if at_work:
            self._quiet.pop(lease.pk, None)
            return
        if quiet is None:
            since = lease.attempt.job.idle_since  # noticed before the agent restarted
            before_s = max(0.0, (now - since).total_seconds()) if since else 0.0
            self._quiet[lease.pk] = _Quiet(now_s - before_s, counted_s=before_s)
            return
        lasted_s = now_s - quiet.since_s
        if lasted_s - quiet.counted_s >= COUNTED_FROM_S:
            Lease.objects.filter(pk=lease.pk).update(idle_s=F("idle_s") + lasted_s - quiet.counted_s)
            quiet.counted_s = lasted_s

    def _judge(self, attempt_id: int, held: Sequence[Lease], now: datetime, now_s: float) -> None:
        """Warn or stop an idle job: one whose devices are all idle, because idle devices may wait for a busy one."""
        job = held[0].attempt.job
        if job.is_service:  # it waits for requests, and stopped it would begin again at once
            return
        quiet = [self._quiet.get(lease.pk) for lease in held]
        if None in quiet:
            if job.idle_since is not None:
                Job.objects.filter(pk=job.pk).update(idle_since=None)
                lifecycle.announce(job)
            self._warned.discard(attempt_id)
            return
        lasted_s = min(now_s - one.since_s for one in quiet if one is not None)
        pool = job.pool
        if pool.idle_stop_after_s and lasted_s >= pool.idle_stop_after_s:
            self._stop(job, lasted_s)
        elif pool.idle_after_s and lasted_s >= pool.idle_after_s and attempt_id not in self._warned:
            self._warned.add(attempt_id)
            if job.idle_since is None:
                self._warn(job, lasted_s, now)

    def _stop(self, job: Job, lasted_s: float) -> None:
        """End a job for good; a session goes to sleep and can be woken."""
        pool = job.pool
        if job.is_session:
            asleep = fact(
                Happened.SESSION_ASLEEP,
                idle_s=lasted_s,
                pool=str(pool),
                kept_s=pool.session_end_after_s or None,
            )
            lifecycle.pause(job, by="idle watch", why=asleep)
        else:
            lifecycle.stop_by_policy(job, why=fact(Happened.IDLE_STOPPED, idle_s=lasted_s, pool=str(pool)))

    def _warn(self, job: Job, lasted_s: float, now: datetime) -> None:
        stop_after_s = job.pool.idle_stop_after_s
        what = fact(Happened.IDLE, idle_s=lasted_s, stop_after_s=stop_after_s, session=job.is_session)
        Job.objects.filter(pk=job.pk).update(idle_since=now - timedelta(seconds=lasted_s))
        lifecycle.remark(job, what, actor="idle watch", now=now)
