"""Fetches the code of waiting jobs, in threads of the worker or the agent, and lets the jobs go on or fail."""

import logging
from datetime import datetime

from django.contrib.auth.models import User
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError, TooLarge
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import preparations
from orchestrator.jobs.background import Background, locked
from orchestrator.jobs.checkouts import mirrors
from orchestrator.jobs.checkouts.bounded import NotWanted
from orchestrator.jobs.checkouts.failures import CannotFetch
from orchestrator.jobs.lifecycle import IllegalTransition, StaleJob
from orchestrator.jobs.submission import arrivals
from orchestrator.models import WAITING_STATES, Checkout, CheckoutState, ExitKind, Job
from orchestrator.people import secrets as job_secrets
from orchestrator.people.secrets import SecretLost

logger = logging.getLogger(__name__)

AT_ONCE = 4  # fetches in one process
OF_ONE = 2  # of one person, whose host may be one that does not answer


def start(number: int) -> bool:
    """Fetch a checkout in a thread of this process; False where one is at it already."""
    owner_id = Checkout.objects.filter(pk=number).values_list("owner_id", flat=True).first()
    return _fetches.start(number, person=owner_id)


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


_fetches = Background("code", fetch, at_once=AT_ONCE, of_one=OF_ONE)


def _fetch(row: Checkout) -> None:
    preparations.change(row, state=CheckoutState.FETCHING, started_at=timezone.now(), next_try_at=None)
    preparations.request_pass(row)
    try:
        owner = User.objects.get(pk=row.owner_id)
        key = job_secrets.reveal(owner, [row.key])[row.key] if row.key else None
        fetched = mirrors.fetch(row.owner_id, row.url, row.ref, key, lambda: _is_wanted(row))
    except NotWanted:
        preparations.change(row, state=CheckoutState.FAILED, ended_at=timezone.now())
    except CannotFetch as error:
        _give_up(row, error)
    except SecretLost as error:
        _give_up(row, CannotFetch("secret", str(error)))
    except TooLarge as error:
        _give_up(row, CannotFetch("size", str(error)))
    except OrchestratorError as error:  # names that code cannot have, or no files
        _give_up(row, CannotFetch("files", str(error)))
    except OSError as error:
        logger.exception("Fetching checkout %s failed", row.pk)
        _give_up(row, CannotFetch("disk", f"{error.strerror or error}."))
    else:
        preparations.change(
            row,
            state=CheckoutState.READY,
            commit=fetched.commit,
            branch=fetched.branch,
            bundle=fetched.bundle,
            notes=list(fetched.notes),
            ended_at=timezone.now(),
            why={},
        )


def _is_wanted(row: Checkout) -> bool:
    """Whether a job waits for the code: it may have been cancelled."""
    return row.jobs.filter(state__in=WAITING_STATES).exists()


def arrive(row: Checkout) -> None:
    """Give the code to the jobs that wait for it."""
    for job in Job.objects.filter(checkout=row, bundle="", state__in=WAITING_STATES).order_by("pk"):
        try:
            arrivals.take_code(job, row)
        except (StaleJob, IllegalTransition):
            continue  # cancelled just now
    preparations.request_pass(row)


def _give_up(row: Checkout, error: CannotFetch) -> None:
    """Try again later if only the network was missing, else fail what waits for it."""
    why = fact(
        Ended.CODE_NOT_FETCHED, cause=error.cause, url=row.url, ref=row.ref, key=row.key, message=error.words
    )
    if error.retriable and row.tries + 1 < preparations.MOST_TRIES:
        preparations.try_again_later(row, why, state=CheckoutState.WAITING, tries=row.tries)
        return
    preparations.change(row, state=CheckoutState.FAILED, why=why.as_json(), ended_at=timezone.now())
    fail_waiting(row)


def fail_waiting(row: Checkout) -> None:
    """End the jobs that wait for code that cannot be fetched."""
    preparations.fail_jobs(row, row.jobs.filter(bundle=""), ExitKind.CODE)


def sweep(now: datetime) -> None:
    """Do what no worker did, or did not end; and find the jobs whose code is there or cannot be had."""
    undone = Checkout.objects.filter(state__in=[CheckoutState.WAITING, CheckoutState.FETCHING])
    for row in undone.filter(jobs__state__in=WAITING_STATES).distinct():
        if preparations.is_left_over(row, now):
            start(row.pk)
    waited_for = Checkout.objects.filter(jobs__state__in=WAITING_STATES, jobs__bundle="").distinct()
    for row in waited_for.filter(state__in=[CheckoutState.READY, CheckoutState.FAILED]):
        if row.state == CheckoutState.READY:
            start(row.pk)
        else:
            fail_waiting(row)
