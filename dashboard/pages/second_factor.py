"""The reader's second factor: an app for codes, passkeys, and recovery codes.

Who changes it gives their password again: a browser that was left open must not shut its person out.
"""

from typing import Any

from django.contrib import messages
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET

from berth.shared import words
from dashboard.pages import rest_form
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import Malformed, OrchestratorError, Sentence, TooMany
from orchestrator.people import audit, sign_in_limits
from orchestrator.people import second_factor as factors
from orchestrator.people.sessions import SECOND_FACTOR
from orchestrator.sentences.errors import sentence_of

_NEW_APP = "new_app"


@require_GET
def second_factor(request: HttpRequest) -> HttpResponse:
    return show(request)


def show(
    request: HttpRequest, *, error: str = "", codes: list[str] | None = None, status: int = 200
) -> HttpResponse:
    """Render the page.

    Args:
        codes: recovery codes that were just made.
        error: why a form was refused.
    """
    user = signed_in(request)
    app, context = factors.app_of(user), dict[str, Any]()
    if app is None:
        context["secret"] = request.session.setdefault(_NEW_APP, factors.new_secret())
        context["link"], context["picture"] = factors.picture_of(user, context["secret"])
    context |= {
        "nav": "account",
        "app": app,
        "passkeys": factors.passkeys(user),
        "passkey_options": factors.options_for_passkey(user),
        "codes_left": len(factors.recovery_codes(user)),
        "codes": codes or [],
        "asked": factors.must_have(user),
        "error": error,
    }
    answer = render(request, "dashboard/second_factor.html", context, status=status)
    answer["Cache-Control"] = "no-store"
    return answer


@rest_form.answers_form("second-factor")
@sensitive_post_parameters("password", "code")
def add_app(request: HttpRequest) -> HttpResponse:
    def add(user: User, address: str) -> None:
        secret = request.session.get(_NEW_APP, "")
        factors.add_app(user, secret, request.POST.get("code", ""), address=address)
        request.session.pop(_NEW_APP, None)

    return _act(request, add, _("Added the app."))


@rest_form.answers_form("second-factor")
@sensitive_post_parameters("password", "passkey")
def add_passkey(request: HttpRequest) -> HttpResponse:
    def add(user: User, address: str) -> None:
        name, credential = request.POST.get("name", ""), request.POST.get("passkey", "")
        factors.add_passkey(user, name, credential, address=address)

    return _act(request, add, _("Added the passkey."))


@rest_form.answers_form("second-factor")
@sensitive_post_parameters("password")
def remove(request: HttpRequest, factor_id: int) -> HttpResponse:
    return _act(
        request, lambda user, address: factors.remove(user, factor_id, address=address), _("Removed it.")
    )


@rest_form.answers_form("second-factor")
@sensitive_post_parameters("password")
def renew_codes(request: HttpRequest) -> HttpResponse:
    return _act(request, lambda user, address: factors.renew_recovery_codes(user, address=address), "")


def _act(request: HttpRequest, act: Any, done: str) -> HttpResponse:
    """Carry out a change of somebody who gives their password; the first factor shows its recovery codes."""
    user = signed_in(request)
    had = factors.has(user)
    try:
        _check_password(request, user)
        act(user, audit.address_of(request))
    except OrchestratorError as error:
        return show(request, error=sentence_of(error), status=error.status)
    has = factors.has(user)
    request.session[SECOND_FACTOR] = has
    if done:
        messages.success(request, done)
    if has and (not had or not done):
        return show(request, codes=factors.recovery_codes(user))
    return redirect("second-factor")


def _check_password(request: HttpRequest, user: User) -> None:
    """Check the reader's password, also one that a directory keeps.

    Raises:
        TooMany: too many were wrong lately.
        Malformed: it is wrong.
    """
    name = user.get_username()
    wait_s = sign_in_limits.wait_s(name, audit.address_of(request), timezone.now())
    if wait_s > 0:
        raise TooMany(
            Sentence("Too many wrong passwords; try again in {duration}.", duration=words.duration(wait_s)),
            retry_after_s=wait_s,
        )
    if authenticate(request, username=name, password=request.POST.get("password", "")) != user:
        raise Malformed("This is not your password.")
