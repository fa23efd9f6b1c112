"""The page of one model: its versions, where one came from and what came of it, recipes, and a service of it."""

from dataclasses import dataclass
from urllib.parse import quote

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from berth.shared.metric_names import in_order
from dashboard.pages import media
from dashboard.pages.reader import signed_in
from dashboard.parts import recipe_forms, recipe_reports
from orchestrator.exceptions import NotFound, OrchestratorError
from orchestrator.jobs import checkpoints, promotion
from orchestrator.jobs.results import printable
from orchestrator.models import (
    Checkpoint,
    Job,
    ModelRecipe,
    ModelVersion,
    Service,
    Sweep,
    SweepTrial,
)
from orchestrator.recipes import listing
from orchestrator.sentences.errors import sentence_of
from orchestrator.services import model_service
from orchestrator.store.files.listing import list_files

MOST_VERSIONS = 100
MOST_VALUES = 3  # metrics in a row of the versions
MOST_FILES = 50
MOST_RECIPES = 30
MOST_SOURCES = 30  # jobs and sweeps to make a version of
MOST_READERS = 20


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a version, or why they cannot be read."""

    listed: list[tuple[str, int]]
    more: int
    problem: str = ""

    @property
    def number(self) -> int:
        return len(self.listed) + self.more


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a version came from, as far as the reader may see it."""

    job: Job | None
    trial: SweepTrial | None
    made_by: ModelRecipe | None
    source: ModelVersion | None  # of that recipe
    problem: str  # with the job's own checkpoint


@require_GET
def model(request: HttpRequest, reference: str) -> HttpResponse:
    """One version, the newest where the address names none."""
    return show(request, reference)


def show(
    request: HttpRequest, reference: str, refused: recipe_forms.Refused | None = None, *, status: int = 200
) -> HttpResponse:
    """The page of a version, with a form as it was typed if REST refused it."""
    user = signed_in(request)
    try:
        shown = promotion.find(reference, user)
    except NotFound as error:
        raise Http404(str(error)) from None
    dataset = shown.dataset
    versions = list(
        ModelVersion.objects.visible_to(user)
        .filter(dataset__owner=dataset.owner, dataset__name=dataset.name)
        .select_related("dataset__owner", "job")[:MOST_VERSIONS]
    )
    found = list(listing.of_model(shown)[:MOST_RECIPES])
    origin, files = _origin(shown, found, user), _files(shown)
    made = recipe_reports.rows_of((each for each in found if each.source_id == shown.pk), user)
    services = model_service.services_of(versions, user)
    is_mine = dataset.owner_id == user.pk
    context = {
        "nav": "models",
        "model": shown,
        "dataset": dataset,
        "short": dataset.reference.removeprefix(f"{user.username}/"),
        "is_newest": not versions or versions[0].pk == shown.pk,
        "versions": [
            {
                "model": each,
                "values": _values(each)[:MOST_VALUES],
                "services": services[each.pk],
                "is_shown": each.pk == shown.pk,
            }
            for each in versions
        ],
        "values": _values(shown),
        "files": files,
        "origin": origin,
        "reads": (origin.job.spec_fields.get("datasets") or []) if origin.job else [],
        "recipes": made,
        "has_results": any(each.result for each in made),
        "is_working": any(each.is_open for each in made),
        "pictures": _pictures(made),
        "services": services[shown.pk],
        "readers": promotion.readers_of([shown], user, MOST_READERS, recipes=False)[shown.pk],
        "forms": recipe_forms.shown_forms(refused),
        "gpu_choices": recipe_forms.gpu_choices(),
        "why_no_recipe": files.problem or _why_no_recipe(shown, origin.job),
        **_service_form(shown, refused),
        "download": f"/api/v1/models/{quote(dataset.reference)}/download",
        "may_add": is_mine,
        "may_remove": is_mine or user.is_staff,
        **(_sources(shown, user) if is_mine else {}),
    }
    return render(request, "dashboard/model.html", context, status=status)


def _service_form(model: ModelVersion, refused: recipe_forms.Refused | None) -> dict[str, object]:
    """What stands in the form of a service of it."""
    if refused is None or refused.kind != recipe_forms.SERVE:
        return {"service_texts": {"name": _free_name(model)}}
    typed = {
        "name": refused.texts.get("name:optional", ""),
        "memory": refused.texts.get("gpu_memory_gib:number", ""),
        "model": refused.texts.get("model:optional", ""),
    }
    return {"service_texts": typed, "refused_service": refused}


def _values(model: ModelVersion) -> list[tuple[str, float]]:
    return [(name, model.values[name]) for name in in_order(model.values)]


def _origin(model: ModelVersion, recipes: list[ModelRecipe], user: User) -> Origin:
    job = Job.objects.visible_to(user).filter(pk=model.job_id).first() if model.job_id else None
    sweeps = Sweep.objects.visible_to(user)
    trial = (
        SweepTrial.objects.filter(job=job, sweep__in=sweeps).select_related("sweep").first() if job else None
    )
    made_by = next((each for each in recipes if each.result_id == model.pk), None)
    source = (
        ModelVersion.objects.visible_to(user)
        .filter(pk=made_by.source_id)
        .select_related("dataset__owner")
        .first()
        if made_by and made_by.source_id
        else None
    )
    return Origin(job, trial, made_by, source, _problem_of_checkpoint(model, job))


def _problem_of_checkpoint(model: ModelVersion, job: Job | None) -> str:
    """What is wrong with the checkpoint that the model is a copy of."""
    if job is None:
        return ""
    row = Checkpoint.objects.filter(job=job, name=model.checkpoint).first()
    try:
        if row is not None and checkpoints.on_disk(row):
            return ""
    except NotFound:
        pass
    return _(
        "The job no longer keeps this checkpoint. The model has copies of its files, so nothing is lost."
    )


def _files(model: ModelVersion) -> Files:
    try:
        found, is_cut = list_files(promotion.folder_of(model))
        is_whole = is_cut or promotion.is_whole(model, found)
    except (OrchestratorError, OSError) as error:
        return Files(
            [], 0, _("The files of this version cannot be read: {why}").format(why=sentence_of(error))
        )
    listed = [(printable(each.path), each.status.st_size) for each in found[:MOST_FILES]]
    problem = ""
    if not is_whole:
        problem = _(
            "The files of this version are damaged: they are not those that were kept. "
            "Make it again from its job, or use another version."
        )
    return Files(listed, len(found) - len(listed), problem)


def _why_no_recipe(model: ModelVersion, job: Job | None) -> str:
    """Why no job can be made from the model; empty: one can."""
    if model.job_id is None:
        return _("The job that it came from is gone, and with it the code that builds the model.")
    if job is None:
        return _("You may not see the job that it came from, so its code cannot run.")
    if not job.bundle and job.checkout is None:
        return _("The code of job {job} is gone, so nothing can build the model.").format(job=job.short_id)
    return ""


def _pictures(rows: list[recipe_reports.RecipeRow]) -> dict[str, object]:
    """What the newest explanation drew, and how many more there are on its job's page."""
    for row in rows:
        if row.recipe.kind == "explain" and row.recipe.outcome and row.job is not None:
            reels, more = media.newest_of(row.job)
            if reels:
                return {"job": row.job, "reels": reels, "more": more}
    return {}


def _free_name(model: ModelVersion) -> str:
    """A name for a service of it that no service has yet."""
    name = model_service.name_for(model)
    taken = set(Service.objects.filter(name__startswith=name[:50]).values_list("name", flat=True))
    if name not in taken:
        return name
    return next(each for number in range(2, len(taken) + 3) if (each := f"{name[:58]}-{number}") not in taken)


def _sources(model: ModelVersion, user: User) -> dict[str, object]:
    """Jobs and sweeps whose checkpoints the next version may be made of, the model's own job first."""
    jobs = Job.objects.visible_to(user).filter(checkpoints__isnull=False).distinct().order_by("-pk")
    newest = list(jobs.only("id", "name")[:MOST_SOURCES])
    own = [each for each in newest if each.pk == model.job_id]
    sweeps = Sweep.objects.visible_to(user).filter(trials__job__checkpoints__isnull=False).distinct()
    return {
        "source_jobs": [*own, *(each for each in newest if each.pk != model.job_id)],
        "source_sweeps": list(sweeps.order_by("-pk")[:MOST_SOURCES]),
    }
