"""Everybody with an account, in one row each, and invitations of new people; for operators of every pool."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods

from dashboard.pages import rest_form, sign_in_steps
from dashboard.pages.reader import DAY_S, signed_in
from orchestrator.api.http.middleware import POLICY_WITH_ISSUER
from orchestrator.exceptions import NotFound, OrchestratorError
from orchestrator.models import Pool, Right, Role
from orchestrator.people import audit, invitations, new_people, newcomers, rights, roster
from orchestrator.sentences.errors import messages_of, sentence_of

PAGE = 50
LIVES = {
    DAY_S: gettext_lazy("1 day"),
    7 * DAY_S: gettext_lazy("7 days"),
    30 * DAY_S: gettext_lazy("30 days"),
}


@require_GET
def people(request: HttpRequest) -> HttpResponse:
    return show_people(request)


def show_people(
    request: HttpRequest,
    *,
    link: str = "",
    form: dict[str, Any] | None = None,
    error: str = "",
    made: Sequence[dict[str, Any]] = (),
    new: dict[str, Any] | None = None,
    new_error: str = "",
    listed: str = "",
    listed_error: str = "",
    status: int = 200,
) -> HttpResponse:
    """Render the page.

    Args:
        link: a new invitation's; ``form`` and ``error`` are of a refused one.
        made: new accounts as REST answers them; ``new`` and ``new_error`` are of a refused one.
        listed: a refused list of new people, with ``listed_error``.
    """
    reader = signed_in(request)
    if not rights.hosts(reader):
        raise PermissionDenied
    is_admin = rights.role_of(reader) == Role.ADMIN
    q = request.GET.get("q", "").strip().replace("\0", "")[:200]
    number = request.GET.get("page", "")
    start = (
        PAGE * (int(number) - 1) if number.isascii() and number.isdigit() and 0 < int(number) < 10**6 else 0
    )
    rows = roster.find_people(q, waits=False).order_by("-is_active", "username")
    found = list(rows[start : start + PAGE + 1])
    given = Role.values if is_admin else [Role.VIEWER, Role.SUBMITTER]
    context = {
        "nav": "people",
        "members": roster.members(found[:PAGE]),
        "waiting": roster.members(list(roster.find_people(waits=True).order_by("-date_joined")[:PAGE])),
        "count": rows.count(),
        "q": q,
        "newer": _page(q, start // PAGE) if start else "",
        "older": _page(q, start // PAGE + 2) if len(found) > PAGE else "",
        "is_admin": is_admin,
        "roles": Role.values,
        "given_roles": given,
        "rights": [right for right in Right.values if is_admin or right != Right.OPERATE],
        "pools": list(Pool.objects.order_by("name")),
        "invitations": list(invitations.open_invitations()[:PAGE]),
        "lives": LIVES,
        "link": link,
        "form": form or {"role": Role.SUBMITTER, "expires_in_s": 7 * DAY_S},
        "error": error,
        "made": made,
        "new": new or {"role": Role.SUBMITTER},
        "new_error": new_error,
        "listed": listed,
        "listed_error": listed_error,
        "columns": new_people.COLUMNS,
        "groups_give_roles": newcomers.groups_give_roles(),
    }
    answer = render(request, "dashboard/people.html", context, status=status)
    if link or made:
        answer["Cache-Control"] = "no-store"  # the only time the link or the passwords are shown
    return answer


def _page(q: str, number: int) -> str:
    return f"?{urlencode({name: value for name, value in (('q', q), ('page', number)) if value})}"


@rest_form.answers_form("people")
def invite(request: HttpRequest) -> HttpResponse:
    """Create an invitation and show its link once, in this answer."""
    form = rest_form.read_fields(request.POST)
    pool, right = form.pop("pool", ""), form.pop("right", "")
    answer = rest_form.call(
        request, "POST", "/api/v1/invitations", {**form, "pools": {pool: right} if pool else {}}
    )
    if answer.status_code >= 400:
        given = {**form, "pool": pool, "right": right}
        return show_people(request, form=given, error=rest_form.problem(answer), status=answer.status_code)
    return show_people(request, link=rest_form.told(answer)["url"])


@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("password")
def join(request: HttpRequest, text: str) -> HttpResponse:
    """The page behind an invitation's link: choose a name and a password, or sign in elsewhere."""
    if request.user.is_authenticated:
        messages.error(request, _("You have an account already. Sign out first to use an invitation."))
        return redirect("overview")
    form = {name: request.POST.get(name, "")[:254] for name in ("username", "email")}
    errors: dict[str, list[str]] = {}
    status = 200
    try:
        invitation = invitations.find(text)
        request.session[newcomers.IN_SESSION] = text
        if request.method == "POST":
            password = request.POST.get("password", "")
            return sign_in_steps.begin(request, _join(request, text, password, form))
    except NotFound as error:
        over = {"sentence": sentence_of(error), "title": _("This invitation is over")}
        return render(request, "dashboard/invitation_over.html", over, status=error.status)
    except OrchestratorError as error:
        errors, status = messages_of(error, "username"), error.status
    context = {
        "invitation": invitation,
        "form": form,
        "errors": errors,
        "single_sign_on": settings.SINGLE_SIGN_ON_NAME,
        "directory": settings.LDAP is not None,
    }
    answer = render(request, "dashboard/invitation.html", context, status=status)
    answer["Cache-Control"] = "no-store"
    if settings.SINGLE_SIGN_ON_NAME:
        answer["Content-Security-Policy"] = POLICY_WITH_ISSUER
    return answer


def _join(request: HttpRequest, text: str, password: str, form: dict[str, str]) -> User:
    user = invitations.join(
        text,
        name=form["username"],
        password=password,
        email=form["email"],
        address=audit.address_of(request),
    )
    request.session.pop(newcomers.IN_SESSION, None)
    return user
