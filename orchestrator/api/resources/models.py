"""Models: checkpoints that people chose, named and versioned, with where they came from and what reads them."""

from datetime import datetime
from typing import Self
from urllib.parse import quote

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr, model_validator

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.downloads import Download, send_file, send_tar
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.job_filters import find_job
from orchestrator.api.resources.sweeps import find_sweep
from orchestrator.exceptions import NotFound, Sentence
from orchestrator.jobs import promotion, shelves, steering
from orchestrator.jobs.results import printable
from orchestrator.models import Job, ModelVersion, RungReport
from orchestrator.people import audit
from orchestrator.store.files.listing import list_files
from orchestrator.store.files.untrusted import open_named
from orchestrator.sweeps.history_rows import best_of

router = Router()
MOST_READERS = 20


class ModelOut(BaseModel):
    """A version of a model; jobs read it as the dataset of the same reference."""

    reference: str = Field(description="person/name@version, as jobs name it among their datasets")
    name: str
    version: str
    owner: str
    description: str
    job: str | None = Field(description="id of the job whose checkpoint it is; null: the job is gone")
    job_name: str = Field(description="empty: the job is gone")
    attempt: int
    checkpoint: str = Field(description="name of the checkpoint in its job")
    step: int | None
    values: dict[str, float] = Field(description="metrics of the job, the last up to the step")
    sha256: str = Field(description="of the list of its files, with the checksum of each")
    size_bytes: int
    created_at: datetime
    download: str


class ModelFileOut(BaseModel):
    path: str
    size_bytes: int


class ReaderOut(BaseModel):
    id: str
    name: str


class ModelDetailOut(ModelOut):
    files: list[ModelFileOut] = Field(description="by path")
    readers: list[ReaderOut] = Field(description="the newest jobs that read it, and that the caller may see")


class ModelIn(Body):
    """A checkpoint of a job, or of the best trial of a sweep."""

    name: StrictStr
    job: StrictStr | None = Field(None, description="its id or a part of it; or give sweep")
    sweep: StrictStr | None = Field(None, description="takes the job of its best trial; or give job")
    checkpoint: StrictStr | None = Field(None, description="step or name; default: the newest")
    version: StrictStr | None = Field(None, description="default: the next number")
    description: StrictStr = ""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.job is None) == (self.sweep is None):
            raise ValueError("give job or sweep, one of them")
        return self


class ModelFile(BaseModel):
    file: str | None = Field(
        None, max_length=1000, description="path of one file; default: all, as an archive"
    )


class ModelQuery(Paging):
    q: str = Field("", max_length=64, description="a part of the name")


@router.get("", response=Page[ModelOut])
def list_models(request: ApiRequest, asked: Query[ModelQuery]) -> Page[ModelOut]:
    """The models of the caller, newest first; admins see all."""
    rows = ModelVersion.objects.visible_to(request.user).select_related("dataset__owner", "job")
    if asked.q:
        rows = rows.filter(dataset__name__icontains=asked.q)
    return page(Page[ModelOut], request, rows, asked, show=show_model)


@router.post("", response={201: ModelOut})
def make_model(request: ApiRequest, body: ModelIn) -> ModelOut:
    """Make a model of a checkpoint; its files are copied, and count as pushed data of the caller."""
    job = find_job(Job.objects.all(), request.user, body.job) if body.job else _best_of(request, body.sweep)
    made = promotion.promote(
        request.user,
        job,
        name=body.name,
        checkpoint=body.checkpoint,
        version=body.version,
        description=body.description,
    )
    text = f"Made the model {made} of job {job.short_id}."
    steering.note(request.user, job, "model.made", text, address=audit.address_of(request))
    return show_model(made)


@router.get(
    "/{path:name}/download", openapi_extra={"responses": {200: {"content": {"application/octet-stream": {}}}}}
)
def download_model(request: ApiRequest, name: str, chosen: Query[ModelFile]) -> Download:
    """The files of a model as a tar archive, or one of them."""
    model = promotion.find(name, request.user)
    folder = promotion.folder_of(model)
    if chosen.file is not None:
        return send_file(request, open_named(folder, chosen.file), chosen.file)
    return send_tar(request, folder, f"{model.dataset.name}-{model.dataset.version}", {})


@router.get("/{path:name}", response=ModelDetailOut)
def get_model(request: ApiRequest, name: str) -> ModelDetailOut:
    """One model by name@version, or the newest version by name alone; person/name for another person's."""
    model = promotion.find(name, request.user)
    files, _ = list_files(promotion.folder_of(model))
    return ModelDetailOut(
        **show_model(model).model_dump(),
        files=[ModelFileOut(path=printable(each.path), size_bytes=each.status.st_size) for each in files],
        readers=[
            ReaderOut(id=str(job.pk), name=job.name)
            for job in promotion.readers_of([model], request.user, MOST_READERS)[model.pk]
        ],
    )


@router.delete("/{path:name}", response={204: None})
def remove_model(request: ApiRequest, name: str) -> HttpResponse:
    """Remove one version of a model and its files; a job that waits for it or reads it keeps it."""
    model = promotion.find(name, request.user)
    shelves.check_removal(request.user, model.dataset)
    shelves.remove(model.dataset)
    return HttpResponse(status=204)


def show_model(model: ModelVersion) -> ModelOut:
    dataset, job = model.dataset, model.job
    return ModelOut(
        reference=dataset.reference,
        name=dataset.name,
        version=dataset.version,
        owner=dataset.owner.username,
        description=dataset.description,
        job=None if job is None else str(job.pk),
        job_name="" if job is None else job.name,
        attempt=model.attempt_number,
        checkpoint=model.checkpoint,
        step=model.step,
        values=model.values,
        sha256=dataset.sha256,
        size_bytes=dataset.size_bytes or 0,
        created_at=dataset.created_at,
        download=f"/api/v1/models/{quote(dataset.reference)}/download",
    )


def _best_of(request: ApiRequest, text: str | None) -> Job:
    sweep = find_sweep(request.user, text or "")
    reports = RungReport.objects.filter(trial__sweep=sweep).select_related("trial__job")
    best = best_of(sweep, reports)
    if best is None:
        raise NotFound(
            Sentence(
                "No trial of {sweep} ({short_id}) has reported {metric} yet.",
                sweep=sweep.name,
                short_id=sweep.short_id,
                metric=sweep.metric,
            )
        )
    return best.trial.job
