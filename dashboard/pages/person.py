"""Accounts that operators make, and one person's page: an initial password, the tokens of a program's account.

Passwords and tokens stand in the answer to the form that made them, once.
"""

from typing import Any
from urllib.parse import quote

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from dashboard.pages import rest_form
from dashboard.pages.people import show_people
from dashboard.pages.reader import DAY_S, signed_in
from orchestrator.models import Role, Scope, Token
from orchestrator.people import new_people, rights, roster, second_factor

LIVES = {30 * DAY_S: _("30 days"), 90 * DAY_S: _("90 days"), 365 * DAY_S: _("1 year")}


@rest_form.answers_form("people")
def make_person(request: HttpRequest) -> HttpResponse:
    """Make an account, and show its initial password once."""
    form = rest_form.read_fields(request.POST)
    answer = rest_form.call(request, "POST", "/api/v1/people", form)
    if answer.status_code >= 400:
        return show_people(request, new=form, new_error=rest_form.problem(answer), status=answer.status_code)
    return show_people(request, made=[rest_form.told(answer)])


@rest_form.answers_form("people")
def import_people(request: HttpRequest) -> HttpResponse:
    """Make an account for each line of a CSV file or a pasted list, and show their passwords once."""
    text = request.POST.get("csv", "")
    if (file := request.FILES.get("file")) is not None:
        text = file.read(4 * new_people.MOST_CHARACTERS + 1).decode("utf-8", errors="replace")
    answer = rest_form.call(request, "POST", "/api/v1/people/import/csv", {"csv": text})
    if answer.status_code >= 400:
        return show_people(
            request, listed=text, listed_error=rest_form.problem(answer), status=answer.status_code
        )
    return show_people(request, made=rest_form.told(answer)["people"])


@require_GET
def person(request: HttpRequest, username: str) -> HttpResponse:
    return show_person(request, username)


@rest_form.answers_form("person", "username")
def reset_password(request: HttpRequest, username: str) -> HttpResponse:
    """Give the person an initial password, and show it once."""
    return _act(request, username, "password", {}, shown="password")


@rest_form.answers_form("person", "username")
def make_token(request: HttpRequest, username: str) -> HttpResponse:
    """Create a token of a service account, and show it once."""
    return _act(request, username, "tokens", rest_form.read_fields(request.POST), shown="token")


def _act(request: HttpRequest, username: str, what: str, body: dict[str, Any], *, shown: str) -> HttpResponse:
    path = f"/api/v1/people/{quote(username, safe='')}/{what}"
    answer = rest_form.call(request, "POST", path, body)
    if answer.status_code >= 400:
        return show_person(request, username, error=rest_form.problem(answer), status=answer.status_code)
    return show_person(request, username, **{shown: rest_form.told(answer)[shown]})


def show_person(
    request: HttpRequest,
    username: str,
    *,
    password: str = "",
    token: str = "",
    error: str = "",
    status: int = 200,
) -> HttpResponse:
    """Render the page.

    Args:
        password, token: what a form just made.
        error: why a form was refused.
    """
    reader = signed_in(request)
    if not rights.hosts(reader):
        raise PermissionDenied
    user = get_object_or_404(User, username=username)
    (member,) = roster.members([roster.find_people().get(pk=user.pk)])
    context = {
        "nav": "people",
        "member": member,
        "is_admin": rights.role_of(reader) == Role.ADMIN,
        "has_factor": second_factor.has(user),
        "own_password": user.has_usable_password(),
        "tokens": list(Token.objects.filter(user=user, revoked_at=None)) if member.service else [],
        "scopes": [scope for scope in Scope.values if scope != Scope.ADMIN or rights.administers(user)],
        "lives": LIVES,
        "now": timezone.now(),
        "new_password": password,
        "new_token": token,
        "error": error,
    }
    answer = render(request, "dashboard/person.html", context, status=status)
    if password or token:
        answer["Cache-Control"] = "no-store"  # the only time it is shown
    return answer
