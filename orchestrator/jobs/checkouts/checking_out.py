"""Fetches the code of waiting jobs, in threads of the worker or the agent, and lets the jobs go on or fail."""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.background import Background, locked
from orchestrator.jobs.checkouts import mirrors
from orchestrator.jobs.checkouts.failures import CannotFetch
from orchestrator.jobs.lifecycle import IllegalTransition, StaleJob
from orchestrator.jobs.submission import arrivals
from orchestrator.live import wakeups
from orchestrator.models import WAITING_STATES, Checkout, CheckoutState, Errand, ExitKind, Job, JobState
from orchestrator.people import secrets as job_secrets
from orchestrator.people.secrets import SecretLost

logger = logging.getLogger(__name__)

AT_ONCE = 4  # fetches in one process
MOST_TRIES = 6  # without a network, over about ten minutes
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0
LEFT_TO_WORKERS_S = 2.0


def start(number: int) -> bool:
    """Fetch a checkout in a thread of this process; False where one is at it already."""
    return _fetches.start(number)


def fetch(number: int) -> None:
    """Fetch the code of a checkout unless somebody is at it or it is there; may be interrupted anywhere."""
    row = Checkout.objects.filter(pk=number).first()
    if row is None:
        return
    with locked(mirrors.lock_of(row.owner_id, number)) as mine:
        if not mine:
            return
        row.refresh_from_db()
        if row.state in {CheckoutState.WAITING, CheckoutState.FETCHING}:
            _fetch(row)
        if row.state == CheckoutState.READY:
            arrive(row)


_fetches = Background("code", fetch, at_once=AT_ONCE)


def _fetch(row: Checkout) -> None:
    _set(row, state=CheckoutState.FETCHING, started_at=timezone.now(), next_try_at=None)
    _tell_waiting(row)
    try:
        owner = User.objects.get(pk=row.owner_id)
        key = job_secrets.reveal(owner, [row.key])[row.key] if row.key else None
        fetched = mirrors.fetch(row.owner_id, row.url, row.ref, key)
    except CannotFetch as error:
        _give_up(row, error)
    except SecretLost as error:
        _give_up(row, CannotFetch("secret", str(error)))
    except OrchestratorError as error:  # names or sizes that code cannot have
        _give_up(row, CannotFetch("size", str(error)))
    except OSError as error:
        logger.exception("Fetching checkout %s failed", row.pk)
        _give_up(row, CannotFetch("disk", f"{error.strerror or error}."))
    else:
        _set(
            row,
            state=CheckoutState.READY,
            commit=fetched.commit,
            branch=fetched.branch,
            bundle=fetched.bundle,
            notes=list(fetched.notes),
            ended_at=timezone.now(),
            why={},
        )


def arrive(row: Checkout) -> None:
    """Give the code to the jobs that wait for it."""
    for job in Job.objects.filter(checkout=row, bundle="", state__in=WAITING_STATES).order_by("pk"):
        try:
            arrivals.take_code(job, row)
        except (StaleJob, IllegalTransition):
            continue  # cancelled just now
    _tell_waiting(row)


def _give_up(row: Checkout, error: CannotFetch) -> None:
    """Try again later if only the network was missing, else fail what waits for it."""
    why = fact(
        Ended.CODE_NOT_FETCHED, cause=error.cause, url=row.url, ref=row.ref, key=row.key, message=error.words
    )
    now = timezone.now()
    if error.retriable and row.tries + 1 < MOST_TRIES:
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**row.tries)
        next_try_at = now + timedelta(seconds=pause_s)
        _set(
            row, state=CheckoutState.WAITING, why=why.as_json(), tries=row.tries + 1, next_try_at=next_try_at
        )
        _tell_waiting(row)
        return
    _set(row, state=CheckoutState.FAILED, why=why.as_json(), ended_at=now)
    fail_waiting(row)


def fail_waiting(row: Checkout) -> None:
    """End the jobs that wait for code that cannot be fetched."""
    for job in Job.objects.filter(checkout=row, bundle="", state__in=WAITING_STATES):
        try:
            lifecycle.fail_waiting(job, why=Fact.read(row.why), kind=ExitKind.CODE)
        except (StaleJob, IllegalTransition):
            continue  # cancelled just now; the sweep finds the others


def _tell_waiting(row: Checkout) -> None:
    """Ask for a pass, which starts the jobs that wait for this or writes how far it is."""
    with transaction.atomic():
        job = Job.objects.filter(checkout=row, state=JobState.QUEUED).first()
        if job is not None:
            lifecycle.queue_errand(job, Errand.SCHEDULE)
    wakeups.publish("queue")


def _set(row: Checkout, **columns: Any) -> None:
    Checkout.objects.filter(pk=row.pk).update(**columns)
    for name, value in columns.items():
        setattr(row, name, value)


def sweep(now: datetime) -> None:
    """Do what no worker did, or did not end; and find the jobs whose code is there or cannot be had."""
    undone = Checkout.objects.filter(state__in=[CheckoutState.WAITING, CheckoutState.FETCHING])
    for row in undone.filter(jobs__state__in=WAITING_STATES).distinct():
        due = row.next_try_at is None or row.next_try_at <= now
        if due and now - row.created_at > timedelta(seconds=LEFT_TO_WORKERS_S):
            start(row.pk)
    waited_for = Checkout.objects.filter(jobs__state__in=WAITING_STATES, jobs__bundle="").distinct()
    for row in waited_for.filter(state__in=[CheckoutState.READY, CheckoutState.FAILED]):
        if row.state == CheckoutState.READY:
            start(row.pk)
        else:
            fail_waiting(row)
