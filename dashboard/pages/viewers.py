"""Viewers look only: on pages they may change nothing but what is theirs alone (REST has its own gate)."""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin

from orchestrator.api.auth import SAFE_METHODS
from orchestrator.models import Role
from orchestrator.people import rights

# Names of addresses; a page that is not here is closed to them.
THEIR_OWN = frozenset(
    {
        *("login", "logout", "theme", "token-create", "token-revoke"),
        *("secret-keep", "secret-forget", "notice-add", "notice-remove"),
    }
)


class ViewersLookOnly(MiddlewareMixin):
    """Behind Django's AuthenticationMiddleware."""

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], arguments: Any, keywords: Any
    ) -> None:
        match = request.resolver_match
        if request.method in SAFE_METHODS or match is None or "api" in match.namespaces:
            return
        if match.url_name in THEIR_OWN or not request.user.is_authenticated:
            return
        if rights.role_of(request.user) == Role.VIEWER:
            raise PermissionDenied(
                "Your role is viewer, which looks only; ask an admin for the role submitter."
            )
