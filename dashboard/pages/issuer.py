"""What the library for OpenID Connect asks of Berth: who of the issuer's people gets in."""

from collections.abc import Mapping
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest
from django.shortcuts import render

from orchestrator.exceptions import OrchestratorError
from orchestrator.people import newcomers
from orchestrator.people.single_sign_on import OpenIdConnect
from orchestrator.sentences.errors import sentence_of


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # the library has no types
    """Named in the settings: who signs in by the issuer gave its second factor there."""

    def get_login_stages(self) -> list[str]:
        return []


class IssuerAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # the library has no types
    """Named in the settings; the library makes one for each request."""

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Before each sign-in: roles follow the issuer's groups."""
        if sociallogin.is_existing:
            newcomers.follow_groups(sociallogin.user, _groups(sociallogin), _oidc().roles)

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        """Whether a person without an account gets one; else the page that says why not."""
        invitation = newcomers.invitation_of(request)
        try:
            newcomers.check_newcomer(invitation, _groups(sociallogin), _oidc().roles)
            if invitation is None:
                newcomers.check_claims(_oidc(), _claims(sociallogin))
        except OrchestratorError as error:
            raise _refusal(request, error) from error
        return True

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> User:
        """Make the account, with its role in the same transaction."""
        try:
            with transaction.atomic():
                user: User = super().save_user(request, sociallogin, form)
                newcomers.admit(user, _groups(sociallogin), _oidc().roles, newcomers.invitation_of(request))
        except OrchestratorError as error:
            raise _refusal(request, error) from error
        request.session.pop(newcomers.IN_SESSION, None)
        return user


def _oidc() -> OpenIdConnect:
    found: OpenIdConnect | None = settings.OPENID_CONNECT
    assert found is not None  # noqa: S101  # this class is named in the settings only with an issuer
    return found


def _claims(sociallogin: Any) -> Mapping[str, Any]:
    """What the issuer said; groups may be in the identity token alone."""
    said = sociallogin.account.extra_data
    return {**(said.get("id_token") or {}), **(said.get("userinfo") or {})} or said


def _groups(sociallogin: Any) -> list[str]:
    return newcomers.groups_in(_oidc(), _claims(sociallogin))


def _refusal(request: HttpRequest, error: OrchestratorError) -> Exception:
    page = render(request, "socialaccount/refused.html", {"sentence": sentence_of(error)}, status=403)
    refusal: Exception = ImmediateHttpResponse(page)
    return refusal
