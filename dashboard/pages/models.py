"""The models page: checkpoints with a name and a version, where they came from, and the jobs that read them."""

from typing import TypedDict
from urllib.parse import quote
from uuid import UUID

from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from berth.shared.metric_names import in_order
from dashboard.pages.reader import signed_in
from orchestrator.jobs import promotion
from orchestrator.models import Job, ModelVersion
from orchestrator.recipes import listing

ON_A_PAGE = 50
MOST_READERS = 3
MOST_VALUES = 3
MOST_RECIPES = 3
# Those that need nothing but the model; the others have options, and are on the command line.
RECIPE_CHOICES = (
    ("evaluate", "Evaluate"),
    ("quantize", "Quantize to int8"),
    ("export", "Export to ONNX"),
    ("prune", "Prune half of the weights"),
    ("explain", "Explain answers"),
)


class RecipeRow(TypedDict):
    kind: str
    source: str
    job: UUID | None  # None: it is gone, or the reader may not see it
    detail: str


class ModelRow(TypedDict):
    model: ModelVersion
    values: list[tuple[str, float]]  # the first metrics
    readers: list[Job]
    download: str
    may_see_job: bool
    may_remove: bool
    may_run: bool  # a recipe: the code of its job is there
    recipes: list[RecipeRow]  # the newest that were made from it
    made_by: RecipeRow | None


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
    readers = promotion.readers_of(shown, user, MOST_READERS, recipes=False)  # those stand beside
    recipes, makers = _recipes_of(shown, user)
    rows: list[ModelRow] = [
        {
            "model": each,
            "values": [(name, each.values[name]) for name in list(in_order(each.values))[:MOST_VALUES]],
            "readers": readers[each.pk],
            "download": f"/api/v1/models/{quote(each.dataset.reference)}/download",
            "may_see_job": each.job_id in seen,
            "may_run": each.job_id in seen,
            "recipes": recipes[each.pk],
            "made_by": makers.get(each.pk),
            "may_remove": each.dataset.owner_id == user.pk or user.is_staff,
        }
        for each in shown
    ]
    context = {
        "nav": "models",
        "rows": rows,
        "page": page,
        "wanted": wanted,
        "recipe_choices": [(kind, _(label)) for kind, label in RECIPE_CHOICES],
    }
    return render(request, "dashboard/models.html", context)


def _recipes_of(
    models: list[ModelVersion], user: User
) -> tuple[dict[int, list[RecipeRow]], dict[int, RecipeRow]]:
    """By each model's key, the newest recipes that were made from it, and the one that made it."""
    made_from: dict[int, list[RecipeRow]] = {model.pk: [] for model in models}
    makers: dict[int, RecipeRow] = {}
    found = list(listing.of_models(models))
    seen = set(
        Job.objects.visible_to(user)
        .filter(pk__in=[each.job_id for each in found])
        .values_list("pk", flat=True)
    )
    for each in found:
        row: RecipeRow = {
            "kind": each.kind,
            "source": each.source_reference,
            "job": each.job_id if each.job_id in seen else None,
            "detail": listing.say(each, listing.report_of(each)) or _(each.job.state if each.job else "gone"),
        }
        if each.source_id in made_from and len(made_from[each.source_id]) < MOST_RECIPES:
            made_from[each.source_id].append(row)
        if each.result_id is not None:
            makers[each.result_id] = row
    return made_from, makers
