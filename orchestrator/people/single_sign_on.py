"""Settings for external sign-in: OpenID Connect (django-allauth) and LDAP (``orchestrator.people.directory``)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.exceptions import WrongSetting

PROVIDER = "oidc"  # in the addresses: /sso/oidc/login/callback/
WAIT, INVITED, SUBMITTER = "wait", "invited", "submitter"
NEWCOMERS = (WAIT, INVITED, SUBMITTER)
# Issuers where anybody can have an account, by host; of Microsoft's, those paths that are no single tenant.
_PUBLIC_HOSTS = frozenset(
    [
        "accounts.google.com",
        "appleid.apple.com",
        "gitlab.com",
        "github.com",
        "orcid.org",
        "www.linkedin.com",
        "www.facebook.com",
        "discord.com",
        "id.twitch.tv",
        "slack.com",
        "api.login.yahoo.com",
        "login.salesforce.com",
    ]
)
_PUBLIC_TENANTS = frozenset(
    [
        "common",
        "organizations",
        "consumers",
        "9188040d-6c67-4c5b-b112-36a304b66dad",
    ]  # the last: private accounts
)
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?\.[a-z0-9-]+")
ROLES = ("admin", "operator", "submitter", "viewer")  # the strongest first
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class OpenIdConnect:
    issuer: str
    client_id: str
    client_secret: str
    name: str  # on the button of the sign-in page
    domains: frozenset[str]  # of mail addresses that newcomers have; empty: any
    roles: tuple[tuple[str, str], ...]  # (role, name of the group), the strongest role first
    groups_claim: str  # the claim that lists a person's groups
    public: bool  # anybody in the world can have an account there


@dataclass(frozen=True, slots=True)
class Ldap:
    url: str
    search_base: str
    user_attribute: str
    start_tls: bool
    domain: str  # of Active Directory; empty elsewhere
    ca_file: str | None  # certificates of authorities; None: the system's
    roles: tuple[tuple[str, str], ...]  # (role, name of the group), the strongest role first


def read_openid_connect(variables: Mapping[str, str]) -> OpenIdConnect | None:
    """Read ``BERTH_OIDC_*``; None without ``BERTH_OIDC_ISSUER``.

    Raises:
        WrongSetting: with one sentence for the terminal.
    """
    issuer = variables.get("BERTH_OIDC_ISSUER", "")
    if not issuer:
        return None
    parts = urlsplit(issuer)
    local = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise WrongSetting(f"BERTH_OIDC_ISSUER is {issuer!r}; give the https:// address of the issuer.")
    client_id = variables.get("BERTH_OIDC_CLIENT_ID", "")
    if not client_id:
        raise WrongSetting(
            "BERTH_OIDC_CLIENT_ID is missing; give the client id that the issuer assigned to Berth."
        )
    domains = _read_domains(variables)
    public = _is_public(issuer)
    if public and not domains and read_newcomers(variables) != INVITED:
        raise WrongSetting(
            f"Anybody can have an account at {parts.hostname}. Set BERTH_OIDC_DOMAINS to the domains of your people's "
            "mail addresses, or BERTH_NEWCOMERS=invited."
        )
    return OpenIdConnect(
        issuer.rstrip("/"),
        client_id,
        _read_secret(variables),
        variables.get("BERTH_OIDC_NAME", "single sign-on"),
        domains,
        _read_roles(variables, "BERTH_OIDC_ROLES"),
        variables.get("BERTH_OIDC_GROUPS_CLAIM", "groups"),
        public,
    )


def read_newcomers(variables: Mapping[str, str]) -> str:
    """What becomes of people whom an identity provider knows and Berth does not yet: ``BERTH_NEWCOMERS``.

    Raises:
        WrongSetting: with one sentence for the terminal.
    """
    chosen = variables.get("BERTH_NEWCOMERS", "") or WAIT
    if chosen not in NEWCOMERS:
        raise WrongSetting(f"BERTH_NEWCOMERS is {chosen!r}; give one of {', '.join(NEWCOMERS)}.")
    return chosen


def _read_domains(variables: Mapping[str, str]) -> frozenset[str]:
    text = variables.get("BERTH_OIDC_DOMAINS", "")
    domains = frozenset(word.casefold() for word in text.replace(",", " ").split())
    if wrong := sorted(word for word in domains if not _DOMAIN.fullmatch(word)):
        raise WrongSetting(
            f"BERTH_OIDC_DOMAINS has {wrong[0]!r}; give domains of mail addresses, such as lab.example."
        )
    return domains


def _is_public(issuer: str) -> bool:
    parts = urlsplit(issuer)
    if parts.hostname == "login.microsoftonline.com":
        return parts.path.strip("/").partition("/")[0] in _PUBLIC_TENANTS
    return parts.hostname in _PUBLIC_HOSTS


def _read_secret(variables: Mapping[str, str]) -> str:
    """The secret is in a file: environment variables of a process leak too easily."""
    path = variables.get("BERTH_OIDC_SECRET_FILE", "")
    if not path:
        raise WrongSetting("BERTH_OIDC_SECRET_FILE is missing; give a file that holds the client secret.")
    try:
        return Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSetting(f"BERTH_OIDC_SECRET_FILE {path!r} cannot be read: {error}.") from None


def read_ldap(variables: Mapping[str, str]) -> Ldap | None:
    """Read ``BERTH_LDAP_*``; None without ``BERTH_LDAP_URL``.

    Raises:
        WrongSetting: with one sentence for the terminal.
    """
    url = variables.get("BERTH_LDAP_URL", "")
    if not url:
        return None
    if urlsplit(url).scheme not in {"ldap", "ldaps"}:
        raise WrongSetting(f"BERTH_LDAP_URL is {url!r}; give ldaps://host or ldap://host.")
    if find_spec("ldap3") is None:
        raise WrongSetting(
            "BERTH_LDAP_URL is set, but the package for sign-in by LDAP is missing. Install Berth with its extra "
            'ldap, such as "berth-gpu[server,ldap]"; in a clone run make up again.'
        )
    base = variables.get("BERTH_LDAP_SEARCH_BASE", "")
    if "=" not in base:
        raise WrongSetting(
            "BERTH_LDAP_SEARCH_BASE is missing; give the base of your people, such as ou=people,dc=lab,dc=org."
        )
    attribute = variables.get("BERTH_LDAP_USER_ATTRIBUTE", "uid")
    if not _ATTRIBUTE.fullmatch(attribute):
        raise WrongSetting(
            f"BERTH_LDAP_USER_ATTRIBUTE is {attribute!r}; give uid, sAMAccountName or the like."
        )
    ca_file = variables.get("BERTH_LDAP_CA_FILE") or None
    if ca_file is not None and not Path(ca_file).is_file():
        raise WrongSetting(f"BERTH_LDAP_CA_FILE {ca_file!r} is not a file; give certificates in PEM format.")
    return Ldap(
        url,
        base,
        attribute,
        start_tls=urlsplit(url).scheme == "ldap",
        domain=variables.get("BERTH_LDAP_DOMAIN", ""),
        ca_file=ca_file,
        roles=_read_roles(variables, "BERTH_LDAP_ROLES"),
    )


def _read_roles(variables: Mapping[str, str], setting: str) -> tuple[tuple[str, str], ...]:
    """``admin=cn=gpu-admins,ou=groups,dc=lab; operator=...``"""
    groups: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in variables.get(setting, "").split(";"))):
        role, _, group = part.partition("=")
        is_group = "=" in group if setting == "BERTH_LDAP_ROLES" else bool(group.strip())
        if role.strip() not in ROLES or not is_group:
            raise WrongSetting(
                f"{setting} has {part!r}; give role=group pairs separated by ';', with the roles "
                f"{', '.join(ROLES)}."
            )
        groups[role.strip()] = group.strip()
    return tuple((role, groups[role]) for role in ROLES if role in groups)


def django_settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """Additional Django settings; empty if people sign in with Berth's own passwords only.

    Lists are appended to existing settings, everything else is set.
    """
    variables = {name: text for name, text in variables.items() if text}
    settings: dict[str, Any] = {}
    backends = []
    if (ldap := read_ldap(variables)) is not None:
        backends.append("orchestrator.people.directory.DirectoryBackend")
        settings["LDAP"] = ldap
    if (oidc := read_openid_connect(variables)) is not None:
        backends.append("allauth.account.auth_backends.AuthenticationBackend")
        settings |= _oidc_settings(oidc)
    if backends:
        settings["NEWCOMERS"] = read_newcomers(variables)
        settings["AUTHENTICATION_BACKENDS"] = ["django.contrib.auth.backends.ModelBackend", *backends]
    return settings


def _oidc_settings(oidc: OpenIdConnect) -> dict[str, Any]:
    app = {
        "provider_id": PROVIDER,
        "name": oidc.name,
        "client_id": oidc.client_id,
        "secret": oidc.client_secret,
        "settings": {"server_url": oidc.issuer},
    }
    return {
        "INSTALLED_APPS": [
            "allauth.socialaccount",
            "allauth.socialaccount.providers.openid_connect",
        ],
        "SOCIALACCOUNT_PROVIDERS": {"openid_connect": {"APPS": [app], "OAUTH_PKCE_ENABLED": True}},
        "SOCIALACCOUNT_EMAIL_VERIFICATION": "none",  # the issuer verifies its people
        "SOCIALACCOUNT_OPENID_CONNECT_URL_PREFIX": "",
        "SOCIALACCOUNT_EMAIL_AUTHENTICATION": False,  # an e-mail address alone must not open an existing account
        "SOCIALACCOUNT_STORE_TOKENS": False,
        "ACCOUNT_ADAPTER": "dashboard.pages.issuer.AccountAdapter",
        "SOCIALACCOUNT_ADAPTER": "dashboard.pages.issuer.IssuerAdapter",
        "SINGLE_SIGN_ON_NAME": oidc.name,
        "OPENID_CONNECT": oidc,
    }
