"""How long a sign-in lasts, and its audit.

Django gives every sign-in a new session key. This module adds an idle and an absolute limit, and ends sessions
when the account is disabled.
"""

import contextlib
import time
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.contrib.sessions.backends.base import SessionBase
from django.db import IntegrityError, OperationalError, transaction
from django.db.models.signals import post_save
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from orchestrator.models import LastSeen
from orchestrator.people import accounts, audit, second_factor, sign_in_limits

NOTED_EVERY_S = 600.0  # precision of the idle limit; limits how often a row is written
_SIGNED_IN, _SEEN = "signed_in_at", "seen_at"
SECOND_FACTOR = "second_factor"  # whether this sign-in gave one; missing: an identity provider signed in


class SessionLimits(MiddlewareMixin):
    """End idle and old sessions. Belongs directly after Django's SessionMiddleware."""

    def process_request(self, request: HttpRequest) -> None:
        session = request.session
        if "_auth_user_id" not in session:
            return
        now = time.time()
        remaining_s = session.get(_SIGNED_IN, now) + settings.SESSION_LONGEST_S - now
        is_due = now - session.get(_SEEN, 0.0) > NOTED_EVERY_S
        if remaining_s <= 0 or (is_due and _lacks_factor(session)):
            session.flush()
        elif is_due:
            session.setdefault(_SIGNED_IN, now)
            session[_SEEN] = now
            session.set_expiry(int(min(settings.SESSION_COOKIE_AGE, remaining_s)) + 1)
            _note_seen(session["_auth_user_id"])


def _lacks_factor(session: SessionBase) -> bool:
    """Whether this server asks the person for a second factor since they signed in by a password alone."""
    if settings.ENVIRONMENT.second_factor == "" or session.get(SECOND_FACTOR, True):
        return False
    user = User.objects.filter(pk=session["_auth_user_id"]).first()
    return user is not None and second_factor.must_have(user)


def _note_seen(user_id: str) -> None:
    """Keep when a person was last seen; on a full disk they still need to see what fills it."""
    with contextlib.suppress(OperationalError, IntegrityError), transaction.atomic():
        LastSeen.objects.update_or_create(user_id=user_id, defaults={"at": timezone.now()})


@receiver(user_logged_in)
def _note_sign_in(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    request.session[_SIGNED_IN] = time.time()
    address = audit.address_of(request)
    sign_in_limits.forget_failures(user.get_username(), address)
    audit.record(user, "sign_in.done", f"user {user.get_username()}", "Signed in.", address=address)


@receiver(user_login_failed)
def _note_failure(
    sender: Any, credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any
) -> None:
    account, address = str(credentials.get("username", ""))[:150], audit.address_of(request)
    sign_in_limits.note_failure(account, address, timezone.now())
    audit.record(
        account, "sign_in.failed", f"user {account}", "Gave a wrong name or password.", address=address
    )


@receiver(user_logged_out)
def _note_sign_out(sender: Any, request: HttpRequest, user: User | None, **_: Any) -> None:
    if user is not None:
        audit.record(
            user,
            "sign_in.ended",
            f"user {user.get_username()}",
            "Signed out.",
            address=audit.address_of(request),
        )


@receiver(post_save, sender=User)
def _end_sessions(sender: Any, instance: User, created: bool, **_: Any) -> None:
    if not instance.is_active and not created:
        accounts.end_sessions(instance)
