"""The page of services; changing them goes through the REST API."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from orchestrator.people import rights
from orchestrator.sentences import say_json
from orchestrator.services import listing


@require_GET
def services(request: HttpRequest) -> HttpResponse:
    """The services that the reader may see, with their replicas and the traffic of the last minute."""
    user = signed_in(request)
    rows = listing.services_of(user)
    shown = [
        {
            "row": row,
            "why": say_json(row.service.why),
            "address": request.build_absolute_uri(f"/serve/{row.service.name}/"),
            "is_mine": row.service.owner_id == user.pk or rights.administers(user),
        }
        for row in rows
    ]
    return render(request, "dashboard/services.html", {"nav": "services", "services": shown})
