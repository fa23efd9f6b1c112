"""Who may reach a session: a ticket from Berth's page becomes a cookie of the session's own address.

The browser first gets a mark at the session's address, then asks Berth for a ticket bound to that mark.  So a ticket
works in one browser, once, and nobody can make a browser use another person's ticket.
"""

import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core import signing
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Sentence
from orchestrator.models import Job, JobState, Role, SessionPass
from orchestrator.people import rights

TICKET_S = 60
BEGIN_S = 60
LASTS = timedelta(days=7)  # ends with the sign-in, if that is earlier
_RETURN = signing.TimestampSigner(salt="berth.sessions.return")


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def sign_return(address: str) -> str:
    """Sign the address of Berth that a session's address may send the browser back to."""
    return _RETURN.sign(address)


def read_return(signed: str) -> str | None:
    """The address that ``sign_return`` signed within the last minute; None for anything else."""
    try:
        return _RETURN.unsign(signed, max_age=BEGIN_S)
    except signing.BadSignature:
        return None


def check_open(user: User, job: Job) -> None:
    """Check that a person may open a session.

    Raises:
        Forbidden: it is another person's; a visitor would act as its owner, so not even operators may open it.
        Conflict: it is no session, or it does not run.
    """
    if not job.is_session:
        raise Conflict(Sentence("{job} is not a session; only sessions open in the browser.", job=job))
    if job.owner_id != user.pk:
        raise Forbidden("Only its owner may open this session, because everything in it runs as its owner.")
    if rights.role_of(user) == Role.VIEWER:
        raise Forbidden(rights.why_read_only(user))
    if job.state != JobState.RUNNING:
        raise Conflict(Sentence("This session is {state}; it opens while it is running.", state=job.state))


def issue(user: User, job: Job, sign_in: str, browser_digest: str) -> str:
    """A ticket for the browser that keeps the secret of this digest.

    Raises:
        Forbidden, Conflict: as ``check_open``.
    """
    check_open(user, job)
    now = timezone.now()
    SessionPass.objects.filter(ends_at__lt=now).delete()
    ticket = secrets.token_urlsafe(32)
    SessionPass.objects.create(
        job=job,
        user=user,
        sign_in=sign_in,
        password_mark=digest(user.get_session_auth_hash()),
        browser_digest=browser_digest,
        ticket_digest=digest(ticket),
        ticket_ends_at=now + timedelta(seconds=TICKET_S),
        ends_at=now + LASTS,
    )
    return ticket


def redeem(job_id: UUID, ticket: str, browser_secrets: list[str]) -> str | None:
    """The secret of the cookie that a ticket becomes; None where the ticket is not for this browser and session."""
    marks = [digest(secret) for secret in browser_secrets]
    cookie = secrets.token_urlsafe(32)
    # One statement, so that of two redemptions at once one wins.
    changed = SessionPass.objects.filter(
        job_id=job_id,
        ticket_digest=digest(ticket),
        browser_digest__in=marks,
        cookie_digest="",
        ticket_ends_at__gt=timezone.now(),
    ).update(cookie_digest=digest(cookie))
    return cookie if changed == 1 else None


def holder(job_id: UUID, cookies: list[str]) -> SessionPass | None:
    """The pass of one of these cookies that holds for this session now.

    A neighbouring address can add cookies of the same name, so each of them is tried.
    """
    found = SessionPass.objects.filter(
        job_id=job_id, cookie_digest__in=[digest(secret) for secret in cookies], ends_at__gt=timezone.now()
    ).select_related("user", "job")
    return next((row for row in found if _holds(row, timezone.now())), None)


def _holds(row: SessionPass, now: datetime) -> bool:
    user = row.user
    same_password = hmac.compare_digest(row.password_mark, digest(user.get_session_auth_hash()))
    if not user.is_active or not same_password or rights.role_of(user) == Role.VIEWER:
        return False
    signed_in = Session.objects.filter(pk=row.sign_in, expire_date__gt=now).exists()
    return signed_in and row.job.owner_id == user.pk
