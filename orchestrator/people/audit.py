"""The audit: records who did what, in the same transaction."""

from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpRequest
from django.utils import timezone, translation

from orchestrator.models import AuditEntry
from orchestrator.people.agents import agent_of


def in_english() -> translation.override:
    """A block in which the words that an entry takes from elsewhere are English; the audit has one language."""
    return translation.override("en")


def record(actor: AbstractBaseUser | str, action: str, subject: str, text: str, *, address: str = "") -> None:
    """Append one entry.

    Args:
        action: the kind of action, such as ``quota.changed``.
        subject: what it was done to, such as ``user ada`` or ``pool default``.
        text: a sentence for people, in English; see ``in_english``.
        address: network address of the request.
    """
    name = actor if isinstance(actor, str) else actor.get_username()
    if not isinstance(actor, str) and (rules := agent_of(actor)) is not None:
        text = f"By the agent {rules.token.name}: {text}"
    AuditEntry.objects.create(
        at=timezone.now(),
        actor=name[:150],
        action=action,
        subject=subject[:200],
        text=text[:1000],
        address=address[:64],
    )


def address_of(request: HttpRequest | None) -> str:
    """The network address of a request, as given by the proxy if it is trusted."""
    return "" if request is None else str(request.META.get("REMOTE_ADDR") or "")
