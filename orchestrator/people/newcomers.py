"""People whom an identity provider signs in: who gets an account here, and as what.

A newcomer runs nothing until an operator approves them, unless they were invited, their group has a role, or
``BERTH_NEWCOMERS`` lets everybody submit.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest

from orchestrator.exceptions import Conflict, Forbidden, NotFound, Sentence
from orchestrator.models import Invitation, Person, Role
from orchestrator.people import accounts, audit, invitations, rights
from orchestrator.people.single_sign_on import INVITED, SUBMITTER, OpenIdConnect

logger = logging.getLogger(__name__)

IN_SESSION = "invitation"  # the text of the invitation that this browser opened last
Roles = tuple[tuple[str, str], ...]


def invitation_of(request: HttpRequest | None) -> Invitation | None:
    """The open invitation that this browser came with."""
    text = getattr(request, "session", {}).get(IN_SESSION, "")
    try:
        return invitations.find(text) if text else None
    except NotFound:
        return None


def check_newcomer(invitation: Invitation | None, groups: Collection[str], roles: Roles) -> None:
    """Check that somebody without an account here may get one.

    Raises:
        Forbidden: accounts are for invited people and for groups with a role.
    """
    if settings.NEWCOMERS != INVITED or invitation is not None or role_of_groups(groups, roles) is not None:
        return
    raise Forbidden("You have no account here yet. Ask the person who runs this server for an invitation.")


def check_claims(oidc: OpenIdConnect, claims: Mapping[str, Any]) -> None:
    """Check that the issuer's newcomer is one of the lab's people: by a domain or by a group with a role.

    Raises:
        Forbidden: neither; the sentence says what the issuer would have to tell.
    """
    if not oidc.domains or role_of_groups(groups_in(oidc, claims), oidc.roles) is not None:
        return
    _, at, domain = str(claims.get("email") or "").rpartition("@")
    if not at or domain.casefold() not in oidc.domains:
        raise Forbidden(
            "Your mail address is of no domain that may use this server. Ask the person who runs it for an invitation."
        )
    verified = str(claims.get("email_verified", "" if oidc.public else True)).casefold() == "true"
    if not verified:
        raise Forbidden("Your identity provider has not verified your mail address. Verify it there first.")


def groups_in(oidc: OpenIdConnect, claims: Mapping[str, Any]) -> list[str]:
    """The groups that the issuer's claims name; one alone may come as a text."""
    groups = claims.get(oidc.groups_claim) or []
    return [groups] if isinstance(groups, str) else [str(group) for group in groups]


def admit(user: User, groups: Collection[str], roles: Roles, invitation: Invitation | None) -> None:
    """Give a new account its role: the invitation's, its group's, or a place among those who wait.

    Raises:
        NotFound: the invitation ended this moment.
    """
    if invitation is not None:
        invitations.grant(invitation, user)
    elif (role := role_of_groups(groups, roles)) is not None:
        accounts.set_role(user, role, by=user, by_group=True)
    else:
        _begin_without_group(user)


def follow_groups(user: User, groups: Collection[str], roles: Roles) -> None:
    """Bring a known person's role in line with their groups; without roles for groups, Berth's own role stays."""
    if not roles:
        return
    role, person = role_of_groups(groups, roles), Person.objects.filter(user=user).first()
    by_group = person is not None and person.by_group
    try:
        if role is not None:
            if rights.role_of(user) != role or not by_group:
                accounts.set_role(user, role, by=user, by_group=True)
        elif by_group:
            _begin_without_group(user)
        elif rights.hosts(user):
            accounts.set_role(user, Role.SUBMITTER, by=user)
    except Conflict as error:  # the last admin
        logger.warning("The groups of %s take the role of admin away, but: %s", user.get_username(), error)


def role_of_groups(groups: Collection[str], roles: Roles) -> Role | None:
    """The strongest role that any of these groups has."""
    names = {_comparable(group) for group in groups}
    return next((Role(role) for role, group in roles if _comparable(group) in names), None)


def groups_give_roles() -> bool:
    """Whether groups of the identity provider have roles, which replace those given here at each sign-in."""
    return any(
        provider is not None and provider.roles for provider in (settings.LDAP, settings.OPENID_CONNECT)
    )


def _begin_without_group(user: User) -> None:
    if settings.NEWCOMERS == SUBMITTER:
        accounts.set_role(user, Role.SUBMITTER, by=user)
    else:
        accounts.let_wait(user)


def approve(user: User, role: Role, *, by: User, address: str = "") -> None:
    """Give somebody who waits a role.

    Raises:
        Forbidden: more than the approving person may give.
        Conflict: the person does not wait.
    """
    rights.check_give(by, role, {})
    if not rights.waits(user):
        raise Conflict(Sentence("{user} does not wait for an approval.", user=user.get_username()))
    accounts.set_role(user, role, by=by, address=address)
    text = f"Approved {user.get_username()} as {role}."
    audit.record(by, "person.approved", f"user {user.get_username()}", text, address=address)


def _comparable(group: str) -> str:
    """Normalize a group's name: directories vary its blanks and its case."""
    return ",".join(part.strip() for part in group.casefold().split(","))
