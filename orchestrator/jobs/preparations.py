"""What jobs wait for before they run: rows of code, packages and data, and the jobs that wait for them."""

from datetime import datetime, timedelta
from typing import Any, TypeAlias

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from orchestrator.facts.record import Fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import IllegalTransition, StaleJob
from orchestrator.live import wakeups
from orchestrator.models import WAITING_STATES, Checkout, Environment, Errand, ExitKind, Fetch, Job, JobState

MOST_TRIES = 6  # without a network, over about ten minutes
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0
LEFT_TO_WORKERS_S = 2.0
Preparation: TypeAlias = Checkout | Environment | Fetch


def change(row: Preparation, **columns: Any) -> None:
    """Write columns of a row, and nothing else of it."""
    type(row).objects.filter(pk=row.pk).update(**columns)
    for name, value in columns.items():
        setattr(row, name, value)


def try_again_later(row: Preparation, why: Fact, *, state: str, tries: int) -> None:
    """Let the next try wait, twice as long after each one.

    Args:
        state: of a row that waits.
        tries: made before this one.
    """
    pause = timedelta(seconds=min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tries))
    change(row, state=state, why=why.as_json(), tries=tries + 1, next_try_at=timezone.now() + pause)
    request_pass(row)


def request_pass(row: Preparation) -> None:
    """Request a pass, which starts the jobs that wait for this or writes how far it is."""
    with transaction.atomic():
        job = row.jobs.filter(state=JobState.QUEUED).first()
        if job is not None:
            lifecycle.queue_errand(job, Errand.SCHEDULE)
    wakeups.publish("queue")


def fail_jobs(row: Preparation, jobs: QuerySet[Job], kind: ExitKind) -> None:
    """End those jobs that wait for what cannot be had."""
    for job in jobs.filter(state__in=WAITING_STATES):
        try:
            lifecycle.fail_waiting(job, why=Fact.read(row.why), kind=kind)
        except (StaleJob, IllegalTransition):
            continue  # cancelled just now; the sweep finds the others


def is_left_over(row: Preparation, now: datetime) -> bool:
    """Whether no worker began with this row when it should have, so the sweep has to."""
    is_due = row.next_try_at is None or row.next_try_at <= now
    return is_due and now - row.created_at > timedelta(seconds=LEFT_TO_WORKERS_S)
