"""The models page: checkpoints with a name and a version, where they came from, and the jobs that read them."""

from typing import TypedDict
from urllib.parse import quote

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from berth.metric_names import in_order
from dashboard.pages.reader import signed_in
from orchestrator.jobs import promotion
from orchestrator.models import Job, ModelVersion

ON_A_PAGE = 50
MOST_READERS = 3
MOST_VALUES = 3


class ModelRow(TypedDict):
    model: ModelVersion
    values: list[tuple[str, float]]  # the first metrics
    readers: list[Job]
    download: str
    may_see_job: bool
    may_remove: bool


@require_GET
def models(request: HttpRequest) -> HttpResponse:
    """``q`` is a part of a name."""
    user = signed_in(request)
    wanted = request.GET.get("q", "")[:64]
    found = ModelVersion.objects.visible_to(user).select_related("dataset__owner", "job")
    if wanted:
        found = found.filter(dataset__name__icontains=wanted)
    page = Paginator(found, ON_A_PAGE).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    seen = set(
        Job.objects.visible_to(user)
        .filter(pk__in=[each.job_id for each in shown])
        .values_list("pk", flat=True)
    )
    readers = promotion.readers_of(shown, user, MOST_READERS)
    rows: list[ModelRow] = [
        {
            "model": each,
            "values": [(name, each.values[name]) for name in list(in_order(each.values))[:MOST_VALUES]],
            "readers": readers[each.pk],
            "download": f"/api/v1/models/{quote(each.dataset.reference)}/download",
            "may_see_job": each.job_id in seen,
            "may_remove": each.dataset.owner_id == user.pk or user.is_staff,
        }
        for each in shown
    ]
    context = {"nav": "models", "rows": rows, "page": page, "wanted": wanted}
    return render(request, "dashboard/models.html", context)
