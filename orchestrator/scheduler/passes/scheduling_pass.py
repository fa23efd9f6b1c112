"""A scheduling pass: reads the snapshot, asks the pure ``decide``, and applies its answer."""

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Count
from django.utils import timezone

from orchestrator.jobs import memory_claims
from orchestrator.models import Booking, Errand, Job, Lease, Outbox, Pilot
from orchestrator.scheduler import core
from orchestrator.scheduler.core.speed import without_garbage_collection
from orchestrator.scheduler.passes.dependencies import fail_without_dependency
from orchestrator.scheduler.passes.fewer_devices import fit_to_pools
from orchestrator.scheduler.passes.job_rows import relevant_jobs
from orchestrator.scheduler.passes.learning import learn
from orchestrator.scheduler.passes.snapshot import snapshot
from orchestrator.scheduler.passes.start_estimates import drop_void_estimates
from orchestrator.scheduler.passes.starting import move_apart, preempt, resize, start, vacate
from orchestrator.scheduler.passes.terms import next_term, save_reservations, turn
from orchestrator.scheduler.passes.waits import write_waits

REQUESTS_PER_STATEMENT = 500
POLICY = core.Policy.progress_aware()  # the policy that the benchmarks measure


def run_pass(
    now: datetime | None = None, *, earliest: datetime | None = None, only_for_errands: bool = False
) -> int:
    """Start every job that can start; return how many got devices.

    Any number of passes may run at once: only the newest can write, because each write checks its term.

    Args:
        now: the time of the pass; by default the time at which the queue was read.
        earliest: a lower bound for ``now``: when the cause of this pass became known.
        only_for_errands: do nothing unless an open outbox event asks for a pass.
    """
    given = now
    with turn(), without_garbage_collection():
        now = given or _clock(earliest)
        requests = _open_requests()
        if only_for_errands and not requests:
            return 0
        term = next_term()
        if not _work(now):
            save_reservations(term, core.Decisions(), now)
            _settle(requests, now)
            return 0
        learn(now)
        jobs = {str(job.pk): job for job in relevant_jobs()}
        # After the read: every job in it is older than this, so none starts before its submit.
        now = given or _clock(earliest)
        memory_claims.refresh(jobs.values())
        fit_to_pools(jobs.values())
        state = snapshot(now, jobs)
        decisions = core.decide(state, POLICY)
        scaling = {one.id: one.scaling for one in state.queued}
        started = sum(start(term, jobs[one.job_id], one, now, scaling[one.job_id]) for one in decisions.start)
        for move in decisions.apart:
            move_apart(term, jobs, move)
        for change in decisions.resize:
            resize(term, jobs[change.job_id], change, now)
        for preemption in decisions.preempt:
            preempt(
                term, jobs[preemption.job_id], jobs[preemption.for_job_id], gives_back=preemption.gives_back
            )
        for leaving in decisions.vacate:
            vacate(term, jobs[leaving.job_id], leaving)
        save_reservations(term, decisions, now)
        write_waits(decisions, jobs, now)
        _settle(requests, now)
        return started


def _work(now: datetime) -> bool:
    """Whether anything can be decided: a job waits, may change its number of devices or shares one, or there are bookings or pilots."""
    waiting, elastic = Job.objects.queued(), Job.objects.leased().filter(spec_fields__max_gpus__gt=0)
    if (
        (waiting | elastic).exists()
        or Booking.objects.not_over(now).exists()
        or Pilot.objects.open().exists()
    ):
        return True
    shares = Lease.objects.active().filter(memory_bytes__isnull=False, device__pool__slowdown_limit__gt=0)
    return shares.order_by().values("device").annotate(jobs=Count("attempt")).filter(jobs__gt=1).exists()


def _clock(earliest: datetime | None) -> datetime:
    now = timezone.now()
    return now if earliest is None else max(now, earliest)


def _open_requests() -> list[int]:
    """The outbox events that asked for this pass.

    By id, not by time: a job committed after the pass has read may carry an earlier time.
    """
    return list(Outbox.objects.open().filter(errand=Errand.SCHEDULE).values_list("pk", flat=True))


def _settle(requests: Sequence[int], now: datetime) -> None:
    """Mark the requests as done, then clean up after the pass."""
    for begin in range(0, len(requests), REQUESTS_PER_STATEMENT):
        Outbox.objects.filter(pk__in=requests[begin : begin + REQUESTS_PER_STATEMENT]).update(done_at=now)
    drop_void_estimates()
    fail_without_dependency()
