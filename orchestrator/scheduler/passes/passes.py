"""A scheduling pass: reads the snapshot, asks the pure ``decide``, and applies its answer."""

from collections.abc import Sequence
from datetime import datetime

from django.utils import timezone

from orchestrator.jobs import memory_claims
from orchestrator.models import Booking, Errand, Job, Outbox
from orchestrator.scheduler import core
from orchestrator.scheduler.core.garbage import uncollected
from orchestrator.scheduler.passes.dependencies import fail_without_dependency
from orchestrator.scheduler.passes.fewer_devices import fit_to_pools
from orchestrator.scheduler.passes.learning import learn
from orchestrator.scheduler.passes.promises import drop_void_promises
from orchestrator.scheduler.passes.relevant import relevant_jobs
from orchestrator.scheduler.passes.reservations import keep_plans
from orchestrator.scheduler.passes.snapshot import snapshot
from orchestrator.scheduler.passes.starting import preempt, start, vacate
from orchestrator.scheduler.passes.turns import next_term, turn
from orchestrator.scheduler.passes.waits import write_waits

ERRANDS_A_STATEMENT = 500
POLICY = core.Policy.progress_aware()  # as the benchmarks measure it


def run_pass(
    now: datetime | None = None, *, earliest: datetime | None = None, only_for_errands: bool = False
) -> int:
    """Place what can be placed; returns how many jobs got devices.

    Any number of passes may run at once: only the newest may write (its term is checked with each write).

    Args:
        now: default: when the queue was read.
        earliest: what brought this pass about is known since then.
        only_for_errands: do nothing unless an open errand asks for a pass.
    """
    given = now
    with turn(), uncollected():
        now = given or _clock(earliest)
        seen = _open_errands()
        if only_for_errands and not seen:
            return 0
        term = next_term()
        if not Job.objects.queued().exists() and not Booking.objects.not_over(now).exists():
            keep_plans(term, core.Decisions(), now)
            _settle(seen, now)
            return 0
        learn(now)
        jobs = {str(job.pk): job for job in relevant_jobs()}
        # Behind the read: no job in it is newer, so none starts before its submit.
        now = given or _clock(earliest)
        memory_claims.refresh(jobs.values())
        fit_to_pools(jobs.values())
        state = snapshot(now, jobs)
        decisions = core.decide(state, POLICY)
        started = sum(start(term, jobs[each.job_id], each, now) for each in decisions.start)
        for each in decisions.preempt:
            preempt(term, jobs[each.job_id], jobs[each.for_job_id])
        for leaving in decisions.vacate:
            vacate(term, jobs[leaving.job_id], leaving.booking)
        keep_plans(term, decisions, now)
        write_waits(decisions, jobs, now)
        _settle(seen, now)
        return started


def _clock(earliest: datetime | None) -> datetime:
    now = timezone.now()
    return now if earliest is None else max(now, earliest)


def _open_errands() -> list[int]:
    """What asked for this pass.

    By name, not by time: a job that is committed after the pass has read may have been dated before it.
    """
    return list(Outbox.objects.open().filter(errand=Errand.SCHEDULE).values_list("pk", flat=True))


def _settle(seen: Sequence[int], now: datetime) -> None:
    for begin in range(0, len(seen), ERRANDS_A_STATEMENT):
        Outbox.objects.filter(pk__in=seen[begin : begin + ERRANDS_A_STATEMENT]).update(done_at=now)
    drop_void_promises()
    fail_without_dependency()
