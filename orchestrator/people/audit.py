"""Writes down who did what, in the transaction that does it."""

from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpRequest
from django.utils import timezone

from orchestrator.models import AuditEntry


def record(actor: AbstractBaseUser | str, action: str, subject: str, text: str, *, address: str = "") -> None:
    """Append one entry.

    Args:
        action: what kind of thing was done, such as ``quota.changed``.
        subject: to what, such as ``user ada`` or ``pool default``.
        text: a sentence for people.
        address: where the request came from.
    """
    name = actor if isinstance(actor, str) else actor.get_username()
    AuditEntry.objects.create(
        at=timezone.now(),
        actor=name[:150],
        action=action,
        subject=subject[:200],
        text=text[:1000],
        address=address[:64],
    )


def address_of(request: HttpRequest | None) -> str:
    """Where a request came from, as the server in front of us says."""
    return "" if request is None else str(request.META.get("REMOTE_ADDR") or "")
