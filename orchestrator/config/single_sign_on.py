"""Sign-in by somebody else's directory: OpenID Connect (django-allauth) and LDAP (django-python3-ldap)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.config.environment import WrongSetting

PROVIDER = "oidc"  # in the addresses: /sso/oidc/login/callback/
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class OpenIdConnect:
    issuer: str
    client_id: str
    client_secret: str
    name: str  # on the button of the sign-in page


@dataclass(frozen=True, slots=True)
class Ldap:
    url: str
    search_base: str
    user_attribute: str
    start_tls: bool


def read_openid_connect(variables: Mapping[str, str]) -> OpenIdConnect | None:
    """What ``BERTH_OIDC_*`` says; None where there is no ``BERTH_OIDC_ISSUER``.

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
            "BERTH_OIDC_CLIENT_ID is missing; give the client id that the issuer made for Berth."
        )
    return OpenIdConnect(
        issuer.rstrip("/"),
        client_id,
        _read_secret(variables),
        variables.get("BERTH_OIDC_NAME", "single sign-on"),
    )


def _read_secret(variables: Mapping[str, str]) -> str:
    """A file rather than a variable: the environment of a process is too easily shown."""
    path = variables.get("BERTH_OIDC_SECRET_FILE", "")
    if not path:
        raise WrongSetting("BERTH_OIDC_SECRET_FILE is missing; give a file that holds the client secret.")
    try:
        return Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSetting(f"BERTH_OIDC_SECRET_FILE {path!r} cannot be read: {error}.") from None


def read_ldap(variables: Mapping[str, str]) -> Ldap | None:
    """What ``BERTH_LDAP_*`` says; None where there is no ``BERTH_LDAP_URL``.

    Raises:
        WrongSetting: with one sentence for the terminal.
    """
    url = variables.get("BERTH_LDAP_URL", "")
    if not url:
        return None
    if urlsplit(url).scheme not in {"ldap", "ldaps"}:
        raise WrongSetting(f"BERTH_LDAP_URL is {url!r}; give ldaps://host or ldap://host.")
    base = variables.get("BERTH_LDAP_SEARCH_BASE", "")
    if "=" not in base:
        raise WrongSetting(
            "BERTH_LDAP_SEARCH_BASE is missing; give where people are, such as ou=people,dc=lab,dc=org."
        )
    attribute = variables.get("BERTH_LDAP_USER_ATTRIBUTE", "uid")
    if not _ATTRIBUTE.fullmatch(attribute):
        raise WrongSetting(
            f"BERTH_LDAP_USER_ATTRIBUTE is {attribute!r}; give uid, sAMAccountName or the like."
        )
    return Ldap(url, base, attribute, start_tls=urlsplit(url).scheme == "ldap")


def django_settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """What the settings need beside their own; empty where people sign in with Berth's own passwords alone.

    Lists are to be appended, everything else to be set.
    """
    found: dict[str, Any] = {}
    backends = []
    if (ldap := read_ldap(variables)) is not None:
        backends.append("django_python3_ldap.auth.LDAPBackend")
        found |= _ldap_settings(ldap)
    if (oidc := read_openid_connect(variables)) is not None:
        backends.append("allauth.account.auth_backends.AuthenticationBackend")
        found |= _oidc_settings(oidc)
    if backends:
        found["AUTHENTICATION_BACKENDS"] = ["django.contrib.auth.backends.ModelBackend", *backends]
    return found


def _ldap_settings(ldap: Ldap) -> dict[str, Any]:
    return {
        "LDAP_AUTH_URL": [ldap.url],
        "LDAP_AUTH_USE_TLS": ldap.start_tls,  # a password never crosses the network in the clear
        "LDAP_AUTH_SEARCH_BASE": ldap.search_base,
        "LDAP_AUTH_OBJECT_CLASS": "person",
        "LDAP_AUTH_USER_FIELDS": {
            "username": ldap.user_attribute,
            "first_name": "givenName",
            "last_name": "sn",
            "email": "mail",
        },
        "LDAP_AUTH_CONNECT_TIMEOUT": 5,
        "LDAP_AUTH_RECEIVE_TIMEOUT": 5,
    }


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
            "allauth",
            "allauth.account",
            "allauth.socialaccount",
            "allauth.socialaccount.providers.openid_connect",
        ],
        "MIDDLEWARE": ["allauth.account.middleware.AccountMiddleware"],
        "SOCIALACCOUNT_PROVIDERS": {"openid_connect": {"APPS": [app], "OAUTH_PKCE_ENABLED": True}},
        "SOCIALACCOUNT_ONLY": True,
        "SOCIALACCOUNT_OPENID_CONNECT_URL_PREFIX": "",
        "SOCIALACCOUNT_EMAIL_AUTHENTICATION": False,  # an address alone opens no account that is there
        "SOCIALACCOUNT_STORE_TOKENS": False,
        "ACCOUNT_EMAIL_VERIFICATION": "none",  # the issuer's business
        "SINGLE_SIGN_ON_NAME": oidc.name,
    }
