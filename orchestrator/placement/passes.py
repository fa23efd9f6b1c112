"""A scheduling pass: reads the snapshot, asks the pure ``decide``, and applies its answer."""

from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from orchestrator import memory_claims, scheduling
from orchestrator.models import Booking, Errand, Job, Outbox
from orchestrator.placement.dependencies import fail_without_dependency
from orchestrator.placement.learning import learn
from orchestrator.placement.promises import drop_void_promises
from orchestrator.placement.reservations import keep_plans
from orchestrator.placement.snapshot import relevant_jobs, snapshot
from orchestrator.placement.starting import preempt, start, vacate
from orchestrator.placement.turns import next_term, turn
from orchestrator.placement.waits import write_waits

CLOCK_SLACK = timedelta(seconds=5)
POLICY = scheduling.Policy.progress_aware()  # as the benchmarks measure it


def run_pass(now: datetime | None = None) -> int:
    """Place what can be placed; returns how many jobs got devices.

    Any number of passes may run at once: only the newest may write (its term is checked with each write).
    """
    now = now or timezone.now()
    with turn():
        term = next_term()
        if not Job.objects.queued().exists() and not Booking.objects.not_over(now).exists():
            keep_plans(term, scheduling.Decisions(), now)
            _settle(now)
            return 0
        learn(now)
        jobs = {str(job.pk): job for job in relevant_jobs()}
        memory_claims.refresh(jobs.values())
        state = snapshot(now, jobs)
        decisions = scheduling.decide(state, POLICY)
        started = sum(start(term, jobs[each.job_id], each, now) for each in decisions.start)
        for each in decisions.preempt:
            preempt(term, jobs[each.job_id], jobs[each.for_job_id])
        for leaving in decisions.vacate:
            vacate(term, jobs[leaving.job_id], leaving.booking)
        keep_plans(term, decisions, now)
        write_waits(decisions, jobs, now)
        _settle(now)
        return started


def _settle(now: datetime) -> None:
    """A pass has seen every change up to ``now``: the errands that asked for it are done."""
    seen = Q(created_at__lte=now) | Q(created_at__gt=now + CLOCK_SLACK)  # the clock went back since (F61)
    Outbox.objects.open().filter(seen, errand=Errand.SCHEDULE).update(done_at=now)
    drop_void_promises()
    fail_without_dependency()
