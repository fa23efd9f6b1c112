"""Sign-in with the name and password of an LDAP directory.

The directory is asked only for names that have no password of Berth's own: an entry called ``admin`` in it
must not open the account of that name here.
"""

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ldap3
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
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

from orchestrator.exceptions import Conflict, Unavailable
from orchestrator.models import Role
from orchestrator.people import accounts, rights
from orchestrator.people.single_sign_on import Ldap

logger = logging.getLogger(__name__)

ANSWERS_WITHIN_S = 5
LONGEST_NAME = 150  # as Django keeps it
# What a directory answers to a name that is none of its people, or to a wrong password.
_REFUSED = (
    *(LDAPInvalidCredentialsResult, LDAPNoSuchObjectResult, LDAPUnwillingToPerformResult),
    *(LDAPInvalidDnError, LDAPInvalidDNSyntaxResult),
)


class DirectoryAway(Unavailable):
    """The directory does not answer, or not as it should."""


class DirectoryBackend(ModelBackend):
    """Asks the directory of ``BERTH_LDAP_URL``; who signs in for the first time gets an account."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **_: Any,
    ) -> User | None:
        """
        Raises:
            DirectoryAway: with the sentence for the sign-in page.
        """
        # An empty password is no password to a directory: it answers "welcome, anonymous".
        ldap = settings.LDAP
        if ldap is None or not username or not password or not _may_be_in_directory(username):
            return None
        found = _ask(ldap, username, password)
        if found is None or not _may_be_in_directory(found["username"]):
            return None
        user = _account(found)
        if not self.user_can_authenticate(user):
            return None
        if ldap.roles:
            _give_role(user, found["groups"], ldap)
        return user


def _may_be_in_directory(name: str) -> bool:
    """Whether the name could be one of ours, and nobody here has it with a password of their own."""
    try:
        User._meta.get_field("username").run_validators(name)
    except ValidationError:
        return False
    own = User.objects.filter(username__iexact=name)
    return not any(user.has_usable_password() for user in own)


def _ask(ldap: Ldap, name: str, password: str) -> dict[str, Any] | None:
    """What the directory knows of a person, as they see it themselves; None where it refuses them."""
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
        logger.warning("The directory %s does not answer as it should: %s", ldap.url, error)
        raise DirectoryAway(
            "The directory that knows your password does not answer; try again in a while, or ask the person "
            "who runs this server. Accounts with a password of Berth's own are not affected."
        ) from error
    if len(entries) != 1:  # nobody, or a name that does not say who
        return None
    values = entries[0]["attributes"]
    return {
        "username": _first(values, ldap.user_attribute) or name,
        "first_name": _first(values, "givenName")[:LONGEST_NAME],
        "last_name": _first(values, "sn")[:LONGEST_NAME],
        "email": _first(values, "mail")[:254],
        "groups": [str(group) for group in values.get("memberOf") or []],
    }


def _bind_name(ldap: Ldap, name: str) -> str:
    if ldap.domain:
        return name if "@" in name else f"{name}@{ldap.domain}"
    return f"{ldap.user_attribute}={escape_rdn(name)},{ldap.search_base}"


class _VerifiedTls(ldap3.Tls):
    """Certificate and name are checked by OpenSSL: ldap3 checks neither unless told, and the name by what
    Python has given up.
    """

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        context = ssl.create_default_context(cafile=self.ca_certs_file)
        connection.socket = context.wrap_socket(
            connection.socket, server_hostname=connection.server.host, do_handshake_on_connect=do_handshake
        )


@contextmanager
def _connected(ldap: Ldap, user: str, password: str) -> Iterator[Any]:
    """A connection of somebody who gave the right password; it is sent to a directory that proved its name."""
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
        with suppress(LDAPException, OSError):  # what went wrong before is what counts
            connection.unbind()
        if connection.socket is not None:  # it leaves open what could not be connected
            connection.socket.close()


def _first(values: Any, name: str) -> str:
    found = values.get(name)
    if isinstance(found, list):
        found = found[0] if found else ""
    return str(found or "")


def _account(found: dict[str, Any]) -> User:
    """The account of a person, with their name and address as the directory has them now."""
    fields = {name: found[name] for name in ("first_name", "last_name", "email")}
    user = User.objects.filter(username__iexact=found["username"]).first()
    if user is None:
        return User.objects.create_user(found["username"], **fields)  # without a password of its own
    for name, value in fields.items():
        setattr(user, name, value)
    user.save(update_fields=list(fields))
    return user


def _give_role(user: User, groups: list[str], ldap: Ldap) -> None:
    """The strongest role of the person's groups; who is in none of them is a submitter."""
    names = {_comparable(group) for group in groups}
    named = [role for role, group in ldap.roles if _comparable(group) in names]
    role = Role(named[0]) if named else Role.SUBMITTER
    if rights.role_of(user) == role:
        return
    try:
        accounts.set_role(user, role, by=user)
    except Conflict as error:  # the last admin
        logger.warning("The directory makes %s %s, but: %s", user.get_username(), role, error)


def _comparable(group: str) -> str:
    """Directories write a name with or without blanks, and in any case."""
    return ",".join(part.strip() for part in group.casefold().split(","))
