"""The page of federated trainings; stopping them goes through the REST API."""

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from orchestrator.federations import listing
from orchestrator.models import Federation
from orchestrator.people import rights
from orchestrator.sentences import say_json

ON_A_PAGE = 10
MOST_ROUNDS = 20


@require_GET
def federated(request: HttpRequest) -> HttpResponse:
    """The federated trainings that the reader may see, newest first, with their sites and newest rounds."""
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
            }
        )
    return render(request, "dashboard/federated.html", {"nav": "models", "federations": shown, "page": page})
