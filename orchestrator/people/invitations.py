"""Invitations: a link that makes one account with a role, rights in pools and limits, and then ends."""

import hashlib
import secrets
from collections.abc import Mapping
from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Malformed, NotFound, Sentence
from orchestrator.models import Invitation, Role
from orchestrator.people import audit, new_people, rights
from orchestrator.spec.plain_text import clean_text

DAY_S = 24 * 3600
USUAL_LIFE_S = 7.0 * DAY_S
LONGEST_LIFE_S = 30.0 * DAY_S
MOST_OPEN = 500  # of one inviter
_OVER = "This invitation is over: it was used, taken back, or its time has ended. Ask for a new one."


def invite(
    by: User,
    *,
    role: Role = Role.SUBMITTER,
    note: str = "",
    pools: Mapping[str, str] | None = None,
    limits: Mapping[str, float | None] | None = None,
    life_s: float = USUAL_LIFE_S,
    address: str = "",
) -> tuple[Invitation, str]:
    """Create an invitation; the second value is the only copy of its secret text.

    Args:
        note: whom it is for.
        pools: rights by name of the pool.
        limits: of a quota over all pools.

    Raises:
        Forbidden: it gives more than the inviter may give.
        Malformed, Impossible, Conflict: a value cannot be.
    """
    pools, limits = dict(pools or {}), new_people.given(limits or {})
    rights.check_give(by, role, pools)
    _check(pools, limits, life_s)
    if open_invitations().filter(invited_by=by).count() >= MOST_OPEN:
        raise Conflict(
            Sentence("You have {most_open} open invitations. Take some back first.", most_open=MOST_OPEN)
        )
    text = secrets.token_urlsafe(32)
    with transaction.atomic():
        invitation = Invitation.objects.create(
            digest=_digest(text),
            note=_clean(note),
            role=role,
            pools=pools,
            limits=limits,
            invited_by=by,
            expires_at=timezone.now() + timedelta(seconds=life_s),
        )
        sentence = (
            f"Invited {invitation.note or 'somebody'} as {role}, until {invitation.expires_at:%Y-%m-%d}."
        )
        audit.record(by, "invitation.made", str(invitation), sentence, address=address)
    return invitation, text


def open_invitations() -> QuerySet[Invitation]:
    """Invitations that still make an account."""
    return Invitation.objects.filter(
        used_at=None, revoked_at=None, expires_at__gt=timezone.now()
    ).select_related("invited_by")


def find(text: str) -> Invitation:
    """The open invitation with this secret text.

    Raises:
        NotFound: there is no such invitation, or it is over.
    """
    found = open_invitations().filter(digest=_digest(text)).first()
    if found is None:
        raise NotFound(_OVER)
    _check_inviter(found)
    return found


def revoke(invitation: Invitation, *, by: AbstractBaseUser, address: str = "") -> None:
    """Take an invitation back; repeating this is harmless."""
    with transaction.atomic():
        if Invitation.objects.filter(pk=invitation.pk, used_at=None, revoked_at=None).update(
            revoked_at=timezone.now()
        ):
            audit.record(by, "invitation.revoked", str(invitation), "Took it back.", address=address)


def join(text: str, *, name: str, password: str, email: str = "", address: str = "") -> User:
    """Make the account that an invitation promises.

    Raises:
        NotFound: the invitation is over.
        Malformed: the name or the password breaks a rule; ``fields`` says which.
        Conflict: the name is taken.
    """
    with transaction.atomic():
        invitation = _locked(find(text))
        user = User(username=name.strip(), email=email.strip())
        new_people.check_account(user, password)
        user.set_password(password)
        new_people.save(user)
        grant(invitation, user, address=address)
    return user


def grant(invitation: Invitation, user: User, *, address: str = "") -> None:
    """Give a new account what its invitation promises, and close the invitation.

    Raises:
        NotFound: it was used or taken back this moment.
    """
    with transaction.atomic():
        invitation = _locked(invitation)
        by, role = invitation.invited_by, Role(invitation.role)
        new_people.give(user, role, invitation.pools, invitation.limits, by=by, address=address)
        Invitation.objects.filter(pk=invitation.pk).update(used_at=timezone.now(), used_by=user)
        sentence = f"Joined as {user.get_username()} by the invitation of {by.get_username()}."
        audit.record(user, "invitation.used", str(invitation), sentence, address=address)


def _locked(invitation: Invitation) -> Invitation:
    """The row as it is now, locked until the transaction ends: one link makes one account."""
    rows = open_invitations().select_for_update(of=("self",)).filter(pk=invitation.pk)
    if (row := rows.first()) is None:
        raise NotFound(_OVER)
    _check_inviter(row)
    return row


def _check_inviter(invitation: Invitation) -> None:
    """Refuse an invitation whose inviter may no longer give what it promises."""
    by = invitation.invited_by
    try:
        rights.check_give(by, Role(invitation.role), invitation.pools)
    except Forbidden:
        raise NotFound(_OVER) from None
    if not by.is_active:
        raise NotFound(_OVER)


def _check(pools: Mapping[str, str], limits: Mapping[str, float], life_s: float) -> None:
    if not 0 < life_s <= LONGEST_LIFE_S:
        raise _wrong(
            "expires_in_s",
            Sentence(
                "give more than 0 and at most {longest_life_s:.0f} seconds, which are 30 days",
                longest_life_s=LONGEST_LIFE_S,
            ),
        )
    new_people.check_gifts(pools, limits)


def _clean(note: str) -> str:
    if not note.strip():
        return ""
    try:
        return clean_text(note)[: Invitation._meta.get_field("note").max_length]
    except ValueError as error:
        raise _wrong("note", str(error)) from error


def _wrong(name: str, message: str) -> Malformed:
    return Malformed(Sentence("{name}: {message}.", name=name, message=message), fields={name: [message]})


def _digest(text: str) -> str:
    # 256 random bits cannot be guessed, so a fast hash is enough.
    return hashlib.sha256(text.encode()).hexdigest()
