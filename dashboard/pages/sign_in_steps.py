"""What stands between a correct password and the sign-in: a second factor, and a password that nobody else knows.

Until every step is done nobody is signed in; the session only remembers who proved what, for some minutes.
"""

import time
from typing import Any

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from berth.shared import words
from orchestrator.exceptions import Malformed, OrchestratorError, Sentence, TooMany
from orchestrator.people import audit, passwords, second_factor, sign_in_limits
from orchestrator.people.sessions import SECOND_FACTOR
from orchestrator.sentences.errors import messages_of, sentence_of

_PENDING = "signing_in"
_NEW_APP = "new_app"  # of an app that is being added
LASTS_S = 600.0
OWN_PASSWORDS = "django.contrib.auth.backends.ModelBackend"


def begin(request: HttpRequest, user: User, *, backend: str = OWN_PASSWORDS, to: str = "") -> HttpResponse:
    """Sign somebody in who gave the right password, or send them to the next step.

    Args:
        to: where the person wanted to go; empty: the first page.
    """
    request.session.cycle_key()
    request.session[_PENDING] = {
        "user": user.pk,
        "hash": user.get_session_auth_hash(),
        "backend": backend,
        "to": to if url_has_allowed_host_and_scheme(to, {request.get_host()}, request.is_secure()) else "",
        "at": time.time(),
    }
    return _go_on(request, user)


def pending(request: HttpRequest) -> User | None:
    """Who gave the right password here, a moment ago; None: nobody did."""
    state: dict[str, Any] = request.session.get(_PENDING, {})
    if not state or time.time() - state["at"] > LASTS_S:
        return None
    user = User.objects.filter(pk=state["user"], is_active=True).first()
    return user if user is not None and user.get_session_auth_hash() == state["hash"] else None


def _go_on(request: HttpRequest, user: User) -> HttpResponse:
    state: dict[str, Any] = request.session[_PENDING]
    # First the factor: a thief of the initial password must not choose the next one.
    if not state.get("proved") and second_factor.has(user):
        return redirect("sign-in-factor")
    if passwords.must_change(user):
        return redirect("sign-in-password")
    if not state.get("proved") and second_factor.must_have(user):
        return redirect("sign-in-enrol")
    del request.session[_PENDING]
    login(request, user, backend=state["backend"])
    request.session[SECOND_FACTOR] = bool(state.get("proved"))
    return redirect(state["to"] or resolve_url(settings.LOGIN_REDIRECT_URL))


def _remember(request: HttpRequest, user: User, **proved: Any) -> None:
    """Keep a step as done; a new password changes the hash by which the person is known."""
    state = request.session[_PENDING]
    request.session[_PENDING] = {**state, **proved, "hash": user.get_session_auth_hash()}


@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("new")
def choose_password(request: HttpRequest) -> HttpResponse:
    """The first sign-in with a password that somebody else set: choose an own one."""
    user = pending(request)
    if user is None or not passwords.must_change(user):
        return redirect("login")
    errors: dict[str, list[str]] = {}
    status = 200
    if request.method == "POST":
        try:
            passwords.choose(user, request.POST.get("new", ""), address=audit.address_of(request))
            _remember(request, user)
            return _go_on(request, user)
        except OrchestratorError as error:
            errors, status = messages_of(error, "new"), error.status
    context = {"person": user, "errors": errors}
    answer = render(request, "registration/new_password.html", context, status=status)
    answer["Cache-Control"] = "no-store"
    return answer


@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("code", "passkey")
def give_factor(request: HttpRequest) -> HttpResponse:
    """The code of an app, a passkey, or a recovery code."""
    user = pending(request)
    if user is None or not second_factor.has(user):
        return redirect("login")
    error, status = "", 200
    if request.method == "POST":
        try:
            _prove(request, user)
            _remember(request, user, proved=True)
            return _go_on(request, user)
        except OrchestratorError as refusal:
            error, status = sentence_of(refusal), refusal.status
    keys = bool(second_factor.passkeys(user))
    context = {
        "person": user,
        "error": error,
        "has_app": second_factor.app_of(user) is not None,
        "passkey": second_factor.options_to_prove(user) if keys else None,
    }
    answer = render(request, "registration/second_factor.html", context, status=status)
    answer["Cache-Control"] = "no-store"
    return answer


def _prove(request: HttpRequest, user: User) -> None:
    """Check what was given; guesses are slowed down as they are for passwords.

    Raises:
        TooMany: too many were wrong lately.
        Malformed: it is wrong.
    """
    name, address, now = f"{user.get_username()} second factor", audit.address_of(request), timezone.now()
    if (wait_s := sign_in_limits.wait_s(name, address, now)) > 0:
        raise TooMany(
            Sentence("Too many wrong codes; try again in {duration}.", duration=words.duration(wait_s)),
            retry_after_s=wait_s,
        )
    credential = request.POST.get("passkey", "")
    if credential:
        proved = second_factor.prove_by_passkey(user, credential)
    else:
        proved = second_factor.prove_by_code(user, request.POST.get("code", ""))
    if not proved:
        sign_in_limits.note_failure(name, address, now)
        text = "Gave a wrong second factor."
        audit.record(user, "second_factor.failed", f"user {user.get_username()}", text, address=address)
        what = "This passkey is not known here." if credential else "This code is wrong or was used."
        raise Malformed(Sentence("{what} Try again, or use a recovery code.", what=what))
    sign_in_limits.forget_failures(name, address)


@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("code")
def enrol(request: HttpRequest) -> HttpResponse:
    """The first sign-in of somebody whom this server asks for a second factor: add an app."""
    user = pending(request)
    if user is None or second_factor.has(user):
        return redirect("login")
    error, status = "", 200
    if request.method == "POST":
        try:
            secret = request.session.get(_NEW_APP, "")
            second_factor.add_app(
                user, secret, request.POST.get("code", ""), address=audit.address_of(request)
            )
            request.session.pop(_NEW_APP, None)
            _remember(request, user, proved=True)
            context = {"person": user, "codes": second_factor.recovery_codes(user)}
            answer = render(request, "registration/recovery_codes.html", context)
            answer["Cache-Control"] = "no-store"
            return answer
        except OrchestratorError as refusal:
            error, status = sentence_of(refusal), refusal.status
    secret = request.session.setdefault(_NEW_APP, second_factor.new_secret())
    link, picture = second_factor.picture_of(user, secret)
    context = {"person": user, "error": error, "link": link, "picture": picture, "secret": secret}
    answer = render(request, "registration/enrol.html", context, status=status)
    answer["Cache-Control"] = "no-store"
    return answer


@login_not_required
@require_http_methods(["POST"])
def finish(request: HttpRequest) -> HttpResponse:
    """After the recovery codes were shown: whatever step is left, or the sign-in."""
    user = pending(request)
    return redirect("login") if user is None else _go_on(request, user)
