"""The reader: the signed-in person, what a viewer may change, and this browser's preferences."""

from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from orchestrator.api.http.authentication import SAFE_METHODS
from orchestrator.models import Role
from orchestrator.people import rights

THEMES = ("light", "dark")
THEME_COOKIE = "berth_theme"
SHORTCUTS_COOKIE = "berth_keys"
DENSITY_COOKIE = "berth_density"
ZONE_COOKIE = "berth_zone"  # written by calendar.js
COMPACT = "compact"
DAY_S = 24 * 3600
YEAR_S = 366 * DAY_S
# URL names; viewers may post to no others.
THEIR_OWN = frozenset(
    {
        "login",
        "logout",
        "password-change",
        "second-factor",
        "factor-app",
        "factor-passkey",
        "factor-codes",
        "factor-remove",
        "theme",
        "token-create",
        "agent-token-create",
        "token-revoke",
        "secret-keep",
        "secret-forget",
        "notice-add",
        "notice-remove",
    }
)


def signed_in(request: HttpRequest) -> User:
    """The signed-in person; the middleware lets no anonymous request reach a page."""
    user = request.user
    if not isinstance(user, User):
        raise PermissionDenied
    return user


class ReadersLanguage(MiddlewareMixin):
    """The language chosen in this browser, else the browser's own; a program with a token is answered in English."""

    def process_request(self, request: HttpRequest) -> None:
        program = "Authorization" in request.headers
        translation.activate(
            settings.LANGUAGE_CODE if program else translation.get_language_from_request(request)
        )

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if response.get("Content-Type", "").startswith("text/html"):
            patch_vary_headers(response, ["Accept-Language", "Cookie"])
            response.headers.setdefault("Content-Language", translation.get_language() or "")
        translation.deactivate()  # the thread's next work may have no reader
        return response


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
            raise PermissionDenied(rights.why_read_only(request.user))


def theme_of(request: HttpRequest) -> str:
    """The chosen theme; empty follows the system."""
    chosen = request.COOKIES.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else ""


def zone_of(request: HttpRequest) -> tzinfo:
    """The browser's time zone, as its script wrote it down; UTC without scripts, which forms expect then."""
    name = request.COOKIES.get(ZONE_COOKIE, "")
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError):  # an unknown zone, a path, a name too long for a file
        return UTC


def is_compact(request: HttpRequest) -> bool:
    return request.COOKIES.get(DENSITY_COOKIE) == COMPACT


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Theme, density and, from a form that has them, single keys; in this browser."""
    from_script = request.headers.get("X-Requested-With") == "fetch"
    answer: HttpResponse = (
        JsonResponse({"detail": _("Theme changed.")}) if from_script else redirect("account")
    )
    chosen = request.POST.get("theme", "")
    if chosen in THEMES:
        answer.set_cookie(THEME_COOKIE, chosen, max_age=YEAR_S, samesite="Lax", httponly=True)
    else:
        answer.delete_cookie(THEME_COOKIE, samesite="Lax")
    if request.POST.get("density") == COMPACT:
        answer.set_cookie(DENSITY_COOKIE, COMPACT, max_age=YEAR_S, samesite="Lax", httponly=True)
    else:
        answer.delete_cookie(DENSITY_COOKIE, samesite="Lax")
    if "keys" in request.POST:
        _set_shortcuts(answer, on=bool(request.POST.get("shortcuts")))
    if "language" in request.POST:
        _set_language(answer, request.POST["language"])
    return answer


def _set_shortcuts(answer: HttpResponse, *, on: bool) -> None:
    if on:
        answer.delete_cookie(SHORTCUTS_COOKIE, samesite="Lax")
    else:
        answer.set_cookie(SHORTCUTS_COOKIE, "off", max_age=YEAR_S, samesite="Lax", httponly=True)


def _set_language(answer: HttpResponse, chosen: str) -> None:
    """An unknown one means the language of the browser."""
    if chosen in dict(settings.LANGUAGES):
        answer.set_cookie(
            settings.LANGUAGE_COOKIE_NAME, chosen, max_age=YEAR_S, samesite="Lax", httponly=True
        )
    else:
        answer.delete_cookie(settings.LANGUAGE_COOKIE_NAME, samesite="Lax")
