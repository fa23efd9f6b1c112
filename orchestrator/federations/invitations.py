"""Invitations to sites at other Berths: one secret for each site, by which its job takes part and does nothing else."""

import hashlib
import re
import secrets
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Malformed, NotFound, OrchestratorError, Sentence
from orchestrator.jobs import exchanges
from orchestrator.models import Federation, FederationInvitation
from orchestrator.people import audit, rights

DAY_S = 24 * 3600.0
USUAL_LIFE_S = 7 * DAY_S
LONGEST_LIFE_S = 30 * DAY_S
INVITE_WITHIN = timedelta(days=1)  # of the federation's begin; then the rounds no longer wait for the site
SEEN_EVERY = timedelta(seconds=5)  # spares a site that asks often a write for each request
SECRET_FORM = re.compile(r"bsite_[0-9A-Za-z_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class UnknownSite(OrchestratorError):
    """No invitation has this secret."""

    code = "unauthenticated"
    status = 401


class Over(OrchestratorError):
    """The federation, or this site's part in it, is over."""

    code = "over"
    status = 410


def check_may_invite(user: User, federation: Federation) -> None:
    """Refuse those who may only look at a federation.

    Raises:
        Forbidden: they are neither its owner nor an operator of its pool.
    """
    role = rights.right_in(user, federation.pool_id)
    if role == "viewer" or (role == "submitter" and federation.owner_id != user.pk):
        raise Forbidden(
            "You may look at this federation, but not invite its sites. Ask its owner, or an operator of its pool."
        )


def invite(
    user: User, federation: Federation, name: str, *, life_s: float = USUAL_LIFE_S, address: str = ""
) -> tuple[FederationInvitation, str]:
    """Invite a site; the second value is the only copy of its secret.  An earlier secret of the same site ends.

    Raises:
        Forbidden: this person may not.
        Malformed: the name or the time cannot be.
        Conflict: the federation is over or has no room, or the site has joined or was revoked.
    """
    check_may_invite(user, federation)
    _check(name, life_s)
    if federation.has_ended:
        raise Conflict(
            Sentence("This federation is {state}, so no site can join it.", state=federation.state)
        )
    text = f"bsite_{secrets.token_urlsafe(32)}"
    now = timezone.now()
    values = {
        "digest": _digest(text),
        "invited_by": user,
        "created_at": now,
        "expires_at": now + timedelta(seconds=life_s),
    }
    with transaction.atomic():
        Federation.objects.select_for_update().get(pk=federation.pk)  # two invitations never get one number
        row = FederationInvitation.objects.filter(federation=federation, name=name).first()
        if row is None:
            row = FederationInvitation(federation=federation, name=name, number=_free_number(federation))
        else:
            _check_again(row, now)
        for field, value in values.items():
            setattr(row, field, value)
        row.save()
        sentence = f"Invited the site {name}, until {row.expires_at:%Y-%m-%d}."
        audit.record(user, "federation.invited", f"federation {federation}", sentence, address=address)
    return row, text


def _free_number(federation: Federation) -> int:
    taken = set(
        FederationInvitation.objects.filter(federation=federation).values_list("number", flat=True)
    ) | exchanges.told_of(federation.pk)
    for number in federation.remote_numbers:
        if number not in taken:
            return number
    count = len(federation.remote_numbers)
    if not count:
        raise Conflict(
            "This federation was begun without sites at other Berths. Begin it with --remote-sites, the number of them."
        )
    raise Conflict(
        Sentence(
            "All {count} sites at other Berths that this federation was begun for are taken.", count=count
        )
    )


def _check_again(row: FederationInvitation, now: datetime) -> None:
    if row.revoked_at is not None:
        raise Conflict(
            Sentence("The invitation of {name} was revoked. Invite it under another name.", name=row.name)
        )
    if row.joined_at is not None:
        raise Conflict(Sentence("The site {name} has joined already.", name=row.name))
    if row.number in exchanges.told_of(row.federation_id):
        raise Conflict(
            Sentence("The rounds no longer wait for {name}: its invitation has expired.", name=row.name)
        )


def revoke(user: User, federation: Federation, name: str, *, address: str = "") -> FederationInvitation:
    """End the part of a site, whether it has joined or not; repeating this is harmless.

    Raises:
        Forbidden: this person may not.
        NotFound: no site of this name was invited.
    """
    check_may_invite(user, federation)
    row = FederationInvitation.objects.filter(federation=federation, name=name).first()
    if row is None:
        raise NotFound(Sentence("No site {name!r} was invited to this federation.", name=name[:64]))
    if row.revoked_at is None:
        row.revoked_at = timezone.now()
        with transaction.atomic():
            row.save(update_fields=["revoked_at"])
            audit.record(
                user, "federation.revoked", f"federation {federation}", f"Revoked {name}.", address=address
            )
    return row


def site_of(text: str) -> FederationInvitation:
    """The site whose secret this is, which may take part now.

    Raises:
        UnknownSite: it is no site's secret.
        Forbidden: it was revoked, or has expired before the site joined.
        Over: the federation has ended, or the site was left out of it.
    """
    now = timezone.now()
    rows = FederationInvitation.objects.select_related("federation")
    row = rows.filter(digest=_digest(text)).first() if SECRET_FORM.fullmatch(text) else None
    if row is None:
        raise UnknownSite("This invitation is unknown, or was replaced by a newer one. Ask for a new link.")
    if row.revoked_at is not None:
        raise Forbidden(Sentence("The invitation of the site {name} was revoked.", name=row.name))
    if row.joined_at is None and row.expires_at <= now:
        raise Forbidden(
            Sentence(
                "The invitation of the site {name} expired before it joined. Ask for a new link.",
                name=row.name,
            )
        )
    if row.federation.has_ended and row.federation.cleared:
        raise Over(
            Sentence(
                "The federation {name} is {state}.", name=row.federation.name, state=row.federation.state
            )
        )
    _see(row, now)
    return row


def _see(row: FederationInvitation, now: datetime) -> None:
    changed = []
    if row.joined_at is None:
        row.joined_at = now
        changed.append("joined_at")
    if row.seen_at is None or now - row.seen_at > SEEN_EVERY:
        row.seen_at = now
        changed.append("seen_at")
    if changed:
        row.save(update_fields=changed)


def why_over(
    federation: Federation, row: FederationInvitation | None, now: datetime, watched_since: datetime
) -> str:
    """Why the rounds no longer wait for a site, as a part of a sentence; empty: they do.

    Args:
        row: its invitation; None: nobody was invited.
        watched_since: since when this server could hear sites at all.
    """
    if row is None:
        late = now - federation.created_at > INVITE_WITHIN
        return "nobody was invited within a day" if late else ""
    if row.revoked_at is not None:
        return "its invitation was revoked"
    if row.joined_at is None:
        return "nobody joined by its invitation before it expired" if row.expires_at <= now else ""
    patience_s = float(federation.options.get("patience_s", 600.0))
    silent = now - max(row.seen_at or row.joined_at, watched_since)
    # It may have been heard later than it was last written.
    is_silent = silent > timedelta(seconds=patience_s) + SEEN_EVERY
    return f"it was not heard from for {patience_s:g} s" if is_silent else ""


def _check(name: str, life_s: float) -> None:
    if not _NAME.fullmatch(name):
        raise _wrong("name", "use 1 to 63 letters, digits, dots, dashes and underscores")
    if not 0 < life_s <= LONGEST_LIFE_S:
        raise _wrong(
            "expires_in_s",
            Sentence(
                "give more than 0 and at most {longest_life_s:.0f} seconds, which are 30 days",
                longest_life_s=LONGEST_LIFE_S,
            ),
        )


def _wrong(name: str, message: str) -> Malformed:
    return Malformed(Sentence("{name}: {message}.", name=name, message=message), fields={name: [message]})


def _digest(text: str) -> str:
    # 256 random bits cannot be guessed, so a fast hash is enough.
    return hashlib.sha256(text.encode()).hexdigest()
