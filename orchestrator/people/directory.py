"""Sign-in with the name and password of an LDAP directory.

Only names without a password of Berth's own are looked up in the directory: its entry ``admin`` must not
open Berth's account of that name.
"""

import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ldap3
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest
from ldap3.core.exceptions import (
    LDAPException,
    LDAPInvalidCredentialsResult,
    LDAPInvalidDnError,
    LDAPInvalidDNSyntaxResult,
    LDAPNoSuchObjectResult,
    LDAPUnwillingToPerformResult,
)
from ldap3.utils.conv import escape_filter_chars
from ldap3.utils.dn import escape_rdn

from orchestrator.exceptions import Unavailable
from orchestrator.people import newcomers, rights
from orchestrator.people.single_sign_on import Ldap

logger = logging.getLogger(__name__)

ANSWERS_WITHIN_S = 5
LONGEST_NAME = 150  # Django's limit
# A directory's answers to an unknown name or a wrong password.
_REFUSED = (
    LDAPInvalidCredentialsResult,
    LDAPNoSuchObjectResult,
    LDAPUnwillingToPerformResult,
    LDAPInvalidDnError,
    LDAPInvalidDNSyntaxResult,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A person's entry in the directory."""

    username: str
    first_name: str
    last_name: str
    email: str
    groups: list[str]


class DirectoryAway(Unavailable):
    """The directory does not answer, or answers with an error."""


class DirectoryBackend(ModelBackend):
    """Check passwords against the directory of ``BERTH_LDAP_URL``; the first sign-in creates an account."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **_: Any,
    ) -> User | None:
        """Check a name and password.

        Raises:
            DirectoryAway, Forbidden: with the sentence for the sign-in page.
        """
        # LDAP treats an empty password as an anonymous sign-in, which succeeds.
        ldap = settings.LDAP
        if ldap is None or not username or not password or not _may_be_in_directory(username):
            return None
        entry = _ask(ldap, username, password)
        if entry is None or not _may_be_in_directory(entry.username):
            return None
        user = _account(entry, ldap, request)
        return user if self.user_can_authenticate(user) else None


def _may_be_in_directory(name: str) -> bool:
    """Whether the name is valid here, and no account of that name has its own password or is a program's."""
    try:
        User._meta.get_field("username").run_validators(name)
    except ValidationError:
        return False
    own = User.objects.filter(username__iexact=name)
    return not any(user.has_usable_password() or rights.is_service(user) for user in own)


def _ask(ldap: Ldap, name: str, password: str) -> Entry | None:
    """Read a person's entry with their own credentials; None if the directory refuses them."""
    try:
        with _connected(ldap, _bind_name(ldap, name), password) as connection:
            connection.search(
                ldap.search_base,
                f"(&(objectClass=person)({ldap.user_attribute}={escape_filter_chars(name)}))",
                ldap3.SUBTREE,
                attributes=[ldap.user_attribute, "givenName", "sn", "mail", "memberOf"],
                size_limit=2,
            )
            entries = [entry for entry in connection.response if entry["type"] == "searchResEntry"]
    except _REFUSED:
        return None
    except (LDAPException, OSError) as error:
        logger.warning("The directory %s failed: %s", ldap.url, error)
        raise DirectoryAway(
            "The directory that checks your password does not answer. Try again later, or ask the person who runs "
            "this server. Accounts with a password of their own in Berth still work."
        ) from error
    if len(entries) != 1:  # no entry, or several
        return None
    values = entries[0]["attributes"]
    return Entry(
        username=_first(values, ldap.user_attribute) or name,
        first_name=_first(values, "givenName")[:LONGEST_NAME],
        last_name=_first(values, "sn")[:LONGEST_NAME],
        email=_first(values, "mail")[:254],
        groups=[str(group) for group in values.get("memberOf") or []],
    )


def _bind_name(ldap: Ldap, name: str) -> str:
    if ldap.domain:
        return name if "@" in name else f"{name}@{ldap.domain}"
    return f"{ldap.user_attribute}={escape_rdn(name)},{ldap.search_base}"


class _VerifiedTls(ldap3.Tls):
    """Let OpenSSL check certificate and host name: ldap3 checks neither by default, and checks the name with a
    function that Python has removed.
    """

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        context = ssl.create_default_context(cafile=self.ca_certs_file)
        connection.socket = context.wrap_socket(
            connection.socket, server_hostname=connection.server.host, do_handshake_on_connect=do_handshake
        )


@contextmanager
def _connected(ldap: Ldap, user: str, password: str) -> Iterator[Any]:
    """A connection signed in with the person's password, which is sent only after the server proved its name."""
    server = ldap3.Server(
        ldap.url,
        get_info=ldap3.NONE,
        connect_timeout=ANSWERS_WITHIN_S,
        tls=_VerifiedTls(ca_certs_file=ldap.ca_file),
        allowed_referral_hosts=[],
    )
    connection = ldap3.Connection(
        server,
        user=user,
        password=password,
        auto_referrals=False,
        check_names=False,
        raise_exceptions=True,
        read_only=True,
        receive_timeout=ANSWERS_WITHIN_S,
    )
    try:
        connection.open(read_server_info=False)
        if ldap.start_tls:
            connection.start_tls(read_server_info=False)
        connection.bind(read_server_info=False)
        yield connection
    finally:
        with suppress(LDAPException, OSError):  # keep the first error
            connection.unbind()
        if connection.socket is not None:  # unbind leaves a failed connection's socket open
            connection.socket.close()


def _first(values: Any, name: str) -> str:
    value = values.get(name)
    if isinstance(value, list):
        value = value[0] if value else ""
    return str(value or "")


def _account(entry: Entry, ldap: Ldap, request: HttpRequest | None) -> User:
    """Create or update the person's account with the directory's name, mail address and groups.

    Raises:
        Forbidden: newcomers need an invitation, or a group with a role.
    """
    fields = {"first_name": entry.first_name, "last_name": entry.last_name, "email": entry.email}
    user = User.objects.filter(username__iexact=entry.username).first()
    if user is None:
        return _new_account(entry, ldap, request, fields)
    for name, value in fields.items():
        setattr(user, name, value)
    user.save(update_fields=list(fields))
    if user.is_active:
        newcomers.follow_groups(user, entry.groups, ldap.roles)
    return user


def _new_account(entry: Entry, ldap: Ldap, request: HttpRequest | None, fields: Mapping[str, str]) -> User:
    invitation = newcomers.invitation_of(request)
    newcomers.check_newcomer(invitation, entry.groups, ldap.roles)
    with transaction.atomic():
        user = User.objects.create_user(entry.username, **fields)  # without a password in Berth
        newcomers.admit(user, entry.groups, ldap.roles, invitation)
    if invitation is not None and request is not None:
        request.session.pop(newcomers.IN_SESSION, None)
    return user
