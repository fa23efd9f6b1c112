"""The reader's own account: password, tokens, addresses for notifications, secrets for jobs."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from dashboard.pages import rest_form
from dashboard.pages.reader import DAY_S, signed_in
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import JobSecret, NoticeTarget, Occasion, Scope, Token
from orchestrator.people import audit, passwords, second_factor, secrets, tokens
from orchestrator.people.notices import targets
from orchestrator.sentences.errors import messages_of, sentence_of

USUAL_OCCASIONS = [Occasion.FINISHED, Occasion.FAILED, Occasion.WARNING]
EXPIRIES = {
    "30": gettext_lazy("30 days"),
    "90": gettext_lazy("90 days"),
    "365": gettext_lazy("1 year"),
    "": gettext_lazy("never"),
}


def account(request: HttpRequest) -> HttpResponse:
    return show_account(request)


def show_account(
    request: HttpRequest,
    *,
    created: str = "",
    form: dict[str, str] | None = None,
    error: str = "",
    agent: dict[str, Any] | None = None,
    password: dict[str, list[str]] | None = None,
    secret: dict[str, Any] | None = None,
    notice: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render the page.

    Args:
        created: a new token's text.
        password: errors of a refused change, by field.
        agent, secret, notice: refused forms with errors.
    """
    user: User = signed_in(request)
    scopes = [scope for scope in Scope.values if scope != Scope.ADMIN or user.is_staff]
    context = {
        "nav": "account",
        "languages": settings.LANGUAGES,
        "chosen_language": request.COOKIES.get(settings.LANGUAGE_COOKIE_NAME, ""),
        "tokens": list(Token.objects.filter(user=user, revoked_at=None).select_related("agent")),
        "now": timezone.now(),
        "own_password": user.has_usable_password(),
        "password": password or {},
        "has_factor": second_factor.has(user),
        "directory": settings.LDAP is not None,
        "scopes": scopes,
        "expiries": EXPIRIES,
        "created": created,
        "form": form or {"name": "", "scope": Scope.WRITE, "expires": "90"},
        "error": error,
        "agent": agent or {},
        "agent_expiries": [(int(days) * DAY_S, text) for days, text in EXPIRIES.items() if days],
        "secrets": list(JobSecret.objects.filter(owner=user)),
        "secret": secret or {"name": "", "errors": {}},
        "notice_targets": list(NoticeTarget.objects.filter(user=user)),
        "notice": notice
        or {"kind": next(iter(targets.kinds())), "url": "", "occasions": USUAL_OCCASIONS, "errors": {}},
        "occasions": Occasion.choices,
        "kinds": targets.kinds(),
        "own_mail": bool(settings.ENVIRONMENT.mail_url),
    }
    answer = render(request, "dashboard/account.html", context, status=status)
    if created:
        answer["Cache-Control"] = "no-store"  # the only time the token is shown
    return answer


@rest_form.answers_form("account")
@sensitive_post_parameters("current", "new")
def change_password(request: HttpRequest) -> HttpResponse:
    """Change the reader's own password; their sessions in other browsers end."""
    user = signed_in(request)
    current, new = request.POST.get("current", ""), request.POST.get("new", "")
    try:
        passwords.change(user, current=current, new=new, address=audit.address_of(request))
    except OrchestratorError as error:
        errors = messages_of(error, "current")
        return show_account(request, password=errors, status=error.status)
    update_session_auth_hash(request, user)
    messages.success(request, _("Changed your password. You are signed out in every other browser."))
    return redirect("account")


@rest_form.answers_form("account")
def create_token(request: HttpRequest) -> HttpResponse:
    """Create a token and show it once, in this answer."""
    user = signed_in(request)
    form = {name: request.POST.get(name, "")[:200] for name in ("name", "scope", "expires")}
    if form["expires"] not in EXPIRIES or form["scope"] not in Scope.values:
        return show_account(
            request, form=form, error=_("Choose a scope and an expiry from the lists."), status=400
        )
    life_s = int(form["expires"]) * DAY_S if form["expires"] else None
    try:
        secret = tokens.issue(user, name=form["name"], scope=form["scope"], life_s=life_s)[1]
    except OrchestratorError as error:
        return show_account(request, form=form, error=sentence_of(error), status=error.status)
    return show_account(request, created=secret)


@rest_form.answers_form("account")
def create_agent_token(request: HttpRequest) -> HttpResponse:
    """Create a token for a program that acts for the reader, and show it once, in this answer."""
    form = rest_form.read_fields(request.POST)
    answer = rest_form.call(request, "POST", "/api/v1/tokens", form)
    if answer.status_code >= 400:
        refused = {**form, "error": rest_form.problem(answer)}
        return show_account(request, agent=refused, status=answer.status_code)
    return show_account(request, created=rest_form.told(answer)["token"])


@require_POST
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    token = get_object_or_404(Token, pk=token_id, user=signed_in(request))
    tokens.revoke(token)
    text = _("Revoked the token {name}; anything that used it is signed out.")
    messages.success(request, text.format(name=token.name))
    return redirect("account")


@rest_form.answers_form("account")
@sensitive_post_parameters("url")
def add_target(request: HttpRequest) -> HttpResponse:
    url, occasions = request.POST.get("url", "").strip()[:2000], request.POST.getlist("occasions")[:20]
    kind = request.POST.get("kind", "other")
    try:
        target = targets.add(signed_in(request), targets.address_of(kind, url), occasions)
    except OrchestratorError as error:
        errors = messages_of(error, "url")
        refused = {"kind": kind, "url": url, "occasions": occasions, "errors": errors}
        return show_account(request, notice=refused, status=error.status)
    text = _("Added {name}. Send a test to check that it works.")
    messages.success(request, text.format(name=target.shown))
    return redirect("account")


@require_POST
def remove_target(request: HttpRequest, target_id: int) -> HttpResponse:
    target = get_object_or_404(NoticeTarget, pk=target_id, user=signed_in(request))
    target.delete()
    messages.success(request, _("Removed {name}.").format(name=target.shown))
    return redirect("account")


@require_POST
def test_target(request: HttpRequest, target_id: int) -> HttpResponse:
    target = get_object_or_404(NoticeTarget, pk=target_id, user=signed_in(request))
    error = targets.try_out(target)
    if error is None:
        messages.success(request, _("Sent a test to {name}.").format(name=target.shown))
    else:
        text = _("The test to {name} failed: {error}")
        messages.error(request, text.format(name=target.shown, error=error))
    return redirect("account")


@rest_form.answers_form("account")
@sensitive_post_parameters("value")
def store_secret(request: HttpRequest) -> HttpResponse:
    """Store a secret or replace its value; the value is never part of an answer, not even of a refusal."""
    name = request.POST.get("name", "")[:200]
    try:
        secrets.keep(signed_in(request), name, request.POST.get("value", ""))
    except OrchestratorError as error:
        return show_account(request, secret={"name": name, "errors": messages_of(error)}, status=error.status)
    text = _("Stored {name}. List it in a job's secrets to use it there.")
    messages.success(request, text.format(name=name))
    return redirect("account")


@require_POST
def forget_secret(request: HttpRequest, name: str) -> HttpResponse:
    secrets.forget(signed_in(request), name)
    text = _("Deleted {name}. Jobs that list it fail at their next start.")
    messages.success(request, text.format(name=name))
    return redirect("account")
