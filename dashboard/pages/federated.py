"""The page of federated trainings; stopping them and ending sites go through the REST API."""

from collections.abc import Mapping
from uuid import UUID

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from dashboard.pages import rest_form
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import Forbidden
from orchestrator.federations import invitations, listing
from orchestrator.models import Federation
from orchestrator.people import rights
from orchestrator.sentences import say_json
from orchestrator.sentences.errors import said

ON_A_PAGE = 10
MOST_ROUNDS = 20
LIVES = (("86400", "1 day"), ("604800", "7 days"), ("2592000", "30 days"))
USUAL_LIFE = "604800"


@require_GET
def federated(request: HttpRequest) -> HttpResponse:
    """The federated trainings that the reader may see, newest first, with their sites and newest rounds."""
    return _show(request)


@rest_form.answers_form("federated")
def invite(request: HttpRequest, federation: UUID) -> HttpResponse:
    """Invite a site at another Berth, and show its link once, on the page that has the federation."""
    path = f"/api/v1/federated/{federation}/invitations"
    answer = rest_form.call(request, "POST", path, rest_form.read_fields(request.POST))
    if answer.status_code == 404:
        raise Http404
    if answer.status_code < 400:
        return _show(request, federation, {"invited": rest_form.told(answer)})
    refused = {
        "error": rest_form.problem(answer),
        "typed": request.POST.get("name", "")[:63],
        "life": request.POST.get("expires_in_s:number", ""),
    }
    return _show(request, federation, refused, status=answer.status_code)


def _show(
    request: HttpRequest,
    asked: UUID | None = None,
    extra: Mapping[str, object] | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    """Render a page of the list, that with the federation that was asked about if there is one."""
    user = signed_in(request)
    rows = Federation.objects.visible_to(user).select_related("owner", "result__dataset__owner")
    number = _page_with(rows, asked) if asked else request.GET.get("page")
    page = Paginator(rows, ON_A_PAGE).get_page(number)
    shown = []
    for federation in page.object_list:
        row = listing.row_of(federation)
        is_mine = federation.owner_id == user.pk or rights.administers(user)
        shown.append(
            {
                "row": row,
                "sites": [(site, said(site.left_out)) for site in row.sites],
                "rounds": row.report.rounds[: -MOST_ROUNDS - 1 : -1],
                "why": say_json(federation.why),
                "may_stop": is_mine and not federation.has_ended,
                "may_invite": not federation.has_ended and _may_invite(request, federation),
                "has_room": any(site.state == "open" and not site.left_out for site in row.sites),
            }
        )
    context = {
        "nav": "models",
        "federations": shown,
        "page": page,
        "lives": [(seconds, _(text)) for seconds, text in LIVES],
        "usual_life": USUAL_LIFE,
        "asked": asked,
        **(extra or {}),
    }
    answer = render(request, "dashboard/federated.html", context, status=status)
    if asked:
        answer["Cache-Control"] = "no-store"
    return answer


def _page_with(rows: QuerySet[Federation], asked: UUID) -> int:
    """The number of the page that has this federation; 1 if none has it."""
    keys = list(rows.values_list("pk", flat=True))
    return keys.index(asked) // ON_A_PAGE + 1 if asked in keys else 1


def _may_invite(request: HttpRequest, federation: Federation) -> bool:
    try:
        invitations.check_may_invite(signed_in(request), federation)
    except Forbidden:
        return False
    return True
