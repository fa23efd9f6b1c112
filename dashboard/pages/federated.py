"""The page of federated trainings; stopping them and ending sites go through the REST API."""

from uuid import UUID

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.pages import rest_form
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import Forbidden
from orchestrator.federations import invitations, listing
from orchestrator.models import Federation
from orchestrator.people import rights
from orchestrator.sentences import say_json

ON_A_PAGE = 10
MOST_ROUNDS = 20


@require_GET
def federated(request: HttpRequest) -> HttpResponse:
    """The federated trainings that the reader may see, newest first, with their sites and newest rounds."""
    return _show(request)


@rest_form.answers_form("federated")
def invite(request: HttpRequest, federation: UUID) -> HttpResponse:
    """Invite a site at another Berth, and show its link once, in this answer."""
    path = f"/api/v1/federated/{federation}/invitations"
    answer = rest_form.call(request, "POST", path, rest_form.read_fields(request.POST))
    shown = {"asked": federation}
    if answer.status_code >= 400:
        return _show(request, {**shown, "error": rest_form.problem(answer)}, status=answer.status_code)
    return _show(request, {**shown, "invited": rest_form.told(answer)})


def _show(request: HttpRequest, extra: dict[str, object] | None = None, *, status: int = 200) -> HttpResponse:
    user = signed_in(request)
    rows = Federation.objects.visible_to(user).select_related("owner", "result__dataset__owner")
    page = Paginator(rows, ON_A_PAGE).get_page(request.GET.get("page"))
    shown = []
    for federation in page.object_list:
        row = listing.row_of(federation)
        is_mine = federation.owner_id == user.pk or rights.administers(user)
        shown.append(
            {
                "row": row,
                "rounds": row.report.rounds[: -MOST_ROUNDS - 1 : -1],
                "why": say_json(federation.why),
                "may_stop": is_mine and not federation.has_ended,
                "may_invite": not federation.has_ended and _may_invite(request, federation),
                "has_room": any(site.state == "open" and not site.left_out for site in row.sites),
            }
        )
    context = {"nav": "models", "federations": shown, "page": page, **(extra or {})}
    answer = render(request, "dashboard/federated.html", context, status=status)
    if extra:
        answer["Cache-Control"] = "no-store"
    return answer


def _may_invite(request: HttpRequest, federation: Federation) -> bool:
    try:
        invitations.check_may_invite(signed_in(request), federation)
    except Forbidden:
        return False
    return True
