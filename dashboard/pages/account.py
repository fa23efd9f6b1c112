"""The reader's own account: theme, tokens and secrets."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from dashboard.pages.reader import signed_in
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import JobSecret, NoticeTarget, Occasion, Scope, Token
from orchestrator.people import tokens

THEMES = ("light", "dark")
THEME_COOKIE = "berth_theme"
USUAL_OCCASIONS = [Occasion.FINISHED, Occasion.FAILED, Occasion.WARNING]
SHORTCUTS_COOKIE = "berth_keys"
DENSITY_COOKIE = "berth_density"
COMPACT = "compact"
DAY_S = 24 * 3600
YEAR_S = 366 * DAY_S
EXPIRIES = {"30": "30 days", "90": "90 days", "365": "1 year", "": "never"}


def theme_of(request: HttpRequest) -> str:
    """What the reader chose; empty follows the system."""
    chosen = request.COOKIES.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else ""


def is_compact(request: HttpRequest) -> bool:
    return request.COOKIES.get(DENSITY_COOKIE) == COMPACT


def account(request: HttpRequest) -> HttpResponse:
    return show_account(request)


def show_account(
    request: HttpRequest,
    *,
    created: str = "",
    form: dict[str, str] | None = None,
    error: str = "",
    secret: dict[str, Any] | None = None,
    notice: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    """The whole page; ``created`` is a token's text, ``secret`` and ``notice`` what was refused, with errors by field."""
    user: User = signed_in(request)
    scopes = [scope for scope in Scope.values if scope != Scope.ADMIN or user.is_staff]
    context = {
        "nav": "account",
        "tokens": list(Token.objects.filter(user=user, revoked_at=None)),
        "now": timezone.now(),
        "scopes": scopes,
        "expiries": EXPIRIES,
        "created": created,
        "form": form or {"name": "", "scope": Scope.WRITE, "expires": "90"},
        "error": error,
        "secrets": list(JobSecret.objects.filter(owner=user)),
        "secret": secret or {"name": "", "errors": {}},
        "notice_targets": list(NoticeTarget.objects.filter(user=user)),
        "notice": notice or {"url": "", "occasions": USUAL_OCCASIONS, "errors": {}},
        "occasions": Occasion.choices,
        "own_mail": bool(settings.ENVIRONMENT.mail_url),
    }
    answer = render(request, "dashboard/account.html", context, status=status)
    if created:
        answer["Cache-Control"] = "no-store"  # the only time the token is shown
    return answer


@require_POST
def create_token(request: HttpRequest) -> HttpResponse:
    """Make a token and show it once, in this answer."""
    user = signed_in(request)
    form = {name: request.POST.get(name, "")[:200] for name in ("name", "scope", "expires")}
    if form["expires"] not in EXPIRIES or form["scope"] not in Scope.values:
        return show_account(
            request, form=form, error="Choose a scope and an expiry from the lists.", status=400
        )
    life_s = int(form["expires"]) * DAY_S if form["expires"] else None
    try:
        _, secret = tokens.issue(user, name=form["name"], scope=form["scope"], life_s=life_s)
    except OrchestratorError as error:
        return show_account(request, form=form, error=str(error), status=error.status)
    return show_account(request, created=secret)


@require_POST
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    token = get_object_or_404(Token, pk=token_id, user=signed_in(request))
    tokens.revoke(token)
    messages.success(request, f"The token {token.name} is revoked; whatever used it is signed out.")
    return redirect("account")


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Theme and density, in this browser."""
    answer = redirect("account")
    chosen = request.POST.get("theme", "")
    if chosen in THEMES:
        answer.set_cookie(THEME_COOKIE, chosen, max_age=YEAR_S, samesite="Lax", httponly=True)
    else:
        answer.delete_cookie(THEME_COOKIE, samesite="Lax")
    if request.POST.get("density") == COMPACT:
        answer.set_cookie(DENSITY_COOKIE, COMPACT, max_age=YEAR_S, samesite="Lax", httponly=True)
    else:
        answer.delete_cookie(DENSITY_COOKIE, samesite="Lax")
    return answer


@require_POST
def set_shortcuts(request: HttpRequest) -> HttpResponse:
    """Single keys on or off, in this browser."""
    answer = redirect("account")
    if request.POST.get("shortcuts"):
        answer.delete_cookie(SHORTCUTS_COOKIE, samesite="Lax")
    else:
        answer.set_cookie(SHORTCUTS_COOKIE, "off", max_age=YEAR_S, samesite="Lax", httponly=True)
    return answer
