"""API tokens: ``berth_<prefix>_<secret>``, shown once, kept as a hash."""

import contextlib
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import OperationalError, transaction
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Malformed, Sentence
from orchestrator.models import AgentRules, Scope, Token
from orchestrator.people import audit, rights
from orchestrator.spec.plain_text import clean_text

LONGEST_LIFE_S = 366 * 24 * 3600
NAME_LENGTH = 80
_SEEN_EVERY = timedelta(minutes=1)  # spares a busy client a write per request
_FORM = re.compile(r"berth_([0-9a-z]{10})_([0-9A-Za-z_-]{43})")
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SCHEMES = frozenset({"Token", "Bearer"})
_RANK: Mapping[str, int] = {Scope.READ: 0, Scope.WRITE: 1, Scope.ADMIN: 2}


class AgentLimits(NamedTuple):
    """What an agent's token may use; see ``AgentRules``."""

    device_hours: float | None
    width: int
    plan_first: bool


def allows(scope: str, needed: str) -> bool:
    """Whether a scope covers another: admin covers write, write covers read."""
    return _RANK[scope] >= _RANK[needed]


def issue(
    user: User,
    *,
    name: str,
    scope: str = Scope.WRITE,
    life_s: float | None = None,
    at_most: str = Scope.ADMIN,
    ends_by: datetime | None = None,
    address: str = "",
    agent: AgentLimits | None = None,
    by: AbstractBaseUser | None = None,
) -> tuple[Token, str]:
    """Create a token; the second value is the only copy of its text.

    Args:
        life_s: seconds until it expires; None: never.
        at_most: the caller's scope, which a new token cannot exceed.
        agent: makes the token an agent's, which has these limits.
        by: who creates it for a service account; None: its owner does.
        ends_by: when the caller's token expires. A new token cannot outlive it, or a stolen one would never end.

    Raises:
        Malformed: the name, scope or lifetime is invalid.
        Forbidden: the scope exceeds the caller's.
    """
    _check(name := _clean_name(name), scope, life_s)
    _check_owner(user, life_s, by)
    if not (allows(at_most, scope) and allows(rights.widest_scope(user), scope)):
        raise Forbidden(
            Sentence("You cannot create a token with the scope {scope}. Choose a smaller one.", scope=scope)
        )
    prefix = "".join(secrets.choice(_LETTERS) for _ in range(10))
    text = f"berth_{prefix}_{secrets.token_urlsafe(32)}"
    expires_at = None if life_s is None else timezone.now() + timedelta(seconds=life_s)
    if agent is not None and (scope == Scope.ADMIN or expires_at is None):
        raise Malformed(
            "An agent's token has the scope read or write, and an end.",
            fields={"scope": ["choose read or write"]}
            if scope == Scope.ADMIN
            else {"expires_in_s": ["give seconds"]},
        )
    if ends_by is not None:
        expires_at = ends_by if expires_at is None else min(expires_at, ends_by)
    with transaction.atomic():
        token = Token.objects.create(
            user=user, name=name, prefix=prefix, digest=_digest(text), scope=scope, expires_at=expires_at
        )
        if agent is not None:
            AgentRules.objects.create(token=token, **agent._asdict())
        life = "never expires" if expires_at is None else f"until {expires_at:%Y-%m-%d}"
        kind = "agent's token" if agent else "token"
        whose = "" if by is None else f" of {user.get_username()}"
        text_of_audit = f"Created the {kind} {name}{whose} ({scope}, {life})."
        audit.record(by or user, "token.made", f"token {prefix}", text_of_audit, address=address)
    return token, text


def _check_owner(user: User, life_s: float | None, by: AbstractBaseUser | None) -> None:
    """Check who creates this token: people their own, operators the tokens of programs, which end."""
    service, name = rights.is_service(user), user.get_username()
    if by is None and service:
        raise Forbidden("A service account creates no tokens. Ask the person who runs this server for one.")
    if by is not None and not service:
        raise Conflict(
            Sentence("{name} is a person, who creates their own tokens on the Account page.", name=name)
        )
    if service and life_s is None:
        raise Malformed(
            Sentence(
                "A token of a service account ends. Give seconds, at most {longest_life_s}.",
                longest_life_s=LONGEST_LIFE_S,
            ),
            fields={"expires_in_s": ["give seconds"]},
        )


def in_header(header: str) -> str | None:
    """Return the token of an Authorization header; None where the header has another scheme."""
    scheme, _, text = header.partition(" ")
    return text if scheme in _SCHEMES else None


def authenticate(text: str, *, now: datetime | None = None) -> Token | None:
    """Find the usable token with this text, its user loaded; None if unknown, expired, revoked or disabled."""
    if not (form := _FORM.fullmatch(text)):
        return None
    now = now or timezone.now()
    digest = _digest(text)
    candidates = Token.objects.select_related("user", "agent").filter(prefix=form[1])
    token = next((token for token in candidates if hmac.compare_digest(token.digest, digest)), None)
    if token is None or not _is_usable(token, now):
        return None
    if token.last_used_at is None or now - token.last_used_at >= _SEEN_EVERY:
        with contextlib.suppress(OperationalError):  # on a full disk people still need to see what fills it
            Token.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def _is_usable(token: Token, now: datetime) -> bool:
    # Checked in Python: building these conditions into the query cost more than the rest of the check.
    expired = token.expires_at is not None and token.expires_at <= now
    return token.revoked_at is None and not expired and token.user.is_active


def revoke(token: Token, *, by: AbstractBaseUser | None = None, address: str = "") -> Token:
    """Revoke a token; revoking twice is harmless.

    Args:
        by: who revokes it; None: its owner.
    """
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        with transaction.atomic():
            token.save(update_fields=["revoked_at"])
            text = f"Revoked the token {token.name} of {token.user}."
            audit.record(by or token.user, "token.revoked", f"token {token.prefix}", text, address=address)
    return token


def _digest(text: str) -> str:
    # 256 random bits cannot be guessed, so a fast hash is enough.
    return hashlib.sha256(text.encode()).hexdigest()


def _clean_name(name: str) -> str:
    try:
        return clean_text(name)
    except ValueError as error:
        raise Malformed(
            Sentence("The token's name {error}.", error=error), fields={"name": [str(error)]}
        ) from error


def _check(name: str, scope: str, life_s: float | None) -> None:
    if not 1 <= len(name) <= NAME_LENGTH:
        raise Malformed(
            Sentence(
                "Give the token a name of 1 to {name_length} characters, for example the machine that uses it.",
                name_length=NAME_LENGTH,
            ),
            fields={"name": [Sentence("give 1 to {name_length} characters", name_length=NAME_LENGTH)]},
        )
    if scope not in Scope.values:
        raise Malformed(
            Sentence("There is no scope {scope!r}. Choose read, write or admin.", scope=scope[:40]),
            fields={"scope": ["choose read, write or admin"]},
        )
    if life_s is not None and not 0 < life_s <= LONGEST_LIFE_S:
        raise Malformed(
            "A token may last up to a year. Give seconds, or null for a token that never expires.",
            fields={
                "expires_in_s": [
                    Sentence("give more than 0 and at most {longest_life_s}", longest_life_s=LONGEST_LIFE_S)
                ]
            },
        )
