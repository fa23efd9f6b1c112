"""What a job wrote besides its logs: metrics, checkpoints and files."""

from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from django.conf import settings
from django.http import HttpResponse
from django.urls import register_converter
from django.urls.converters import PathConverter
from ninja import Query, Router
from pydantic import BaseModel, Field, ValidationInfo, WithJsonSchema, field_validator

from berth.shared.job_fields import DIFF_FILE
from berth.shared.metric_names import chart_groups
from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.downloads import (
    Download,
    moment,
    send_file,
    send_generated,
    send_tar,
)
from orchestrator.api.http.paging import Page
from orchestrator.api.http.reading import read_seconds
from orchestrator.api.http.writing import write_points
from orchestrator.api.resources.job_filters import find_job
from orchestrator.api.resources.job_view import finite_values, show_checkpoint
from orchestrator.api.resources.schemas import CheckpointOut, LastPointOut, SeriesOut
from orchestrator.jobs import checkpoints, results, steering
from orchestrator.models import Job
from orchestrator.people import audit, rights
from orchestrator.store.checkpoints.outside import read_unkept
from orchestrator.store.files.untrusted import open_named
from orchestrator.store.layout import JobFolder
from orchestrator.store.metrics import series

router = Router()


class UnkeptOut(BaseModel):
    path: str = Field(description="in the working folder")
    times: int = Field(description="how often it was written")
    glob: str = Field(description="add it to checkpoint_glob to keep it")


class CheckpointsOut(Page[CheckpointOut]):
    unkept: list[UnkeptOut] = Field(description="files that look like checkpoints but are not kept")


class FileOut(BaseModel):
    path: str = Field(description="in its folder")
    folder: results.Place = Field(description="output, or work: beside the script")
    size_bytes: int
    modified_at: datetime
    download: str


class FilesOut(Page[FileOut]):
    truncated: bool = Field(description="the list is incomplete")


class MetricsOut(BaseModel):
    series: dict[str, SeriesOut]
    charts: list[list[str]] = Field(description="names to draw in one chart, most relevant first")
    seq: int = Field(description="number of points stored at the time of this answer")


MANY_POINTS = 5_000
Window = Annotated[
    float,
    Field(allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]}),
]


class MetricNames(BaseModel):
    names: str | None = Field(None, max_length=4000, description="separated by commas; default: all")


class MetricWindow(MetricNames):
    x: Literal["step", "time"] = "step"
    start: Window | None = Field(None, alias="from", description="a step; with x=time RFC 3339 or seconds")
    end: Window | None = Field(None, alias="to", description="a step; with x=time RFC 3339 or seconds")
    max_points: Annotated[int, Field(ge=1, le=MANY_POINTS)] = 500

    @field_validator("start", "end", mode="before")
    @classmethod
    def _read_time(cls, value: Any, info: ValidationInfo) -> Any:
        return read_seconds(value) if info.data.get("x") == "time" else value


class FilePath(PathConverter):
    """Django's path converter, which also accepts line breaks: file names may have them."""

    regex = "(?s:.+)"


register_converter(FilePath, "filepath")


@router.get("/{job_id}/metrics", response=MetricsOut)
def read_job_metrics(request: ApiRequest, job_id: str, window: Query[MetricWindow]) -> MetricsOut:
    """Down-sampled series with the mean, minimum and maximum of each bucket, so that no spike is lost."""
    job = find_job(Job.objects.all(), request.user, job_id)
    names = None if window.names is None else window.names.split(",")
    folder = _folder(job).metrics
    seq = job.metric_seq
    if not seq:
        return MetricsOut(series={}, charts=[], seq=0)
    metrics = series.read_series(
        folder, names, window.x, window.start, window.end, window.max_points, until_seq=seq
    )
    newest = series.last_values(folder, until_seq=seq)
    answers = {
        name: SeriesOut(**each.as_json(), last=_last_point(newest.get(name), window.x))
        for name, each in metrics.items()
    }
    return MetricsOut(series=answers, charts=chart_groups(answers), seq=seq)


def _last_point(last: series.LastValue | None, x: str) -> LastPointOut | None:
    if last is None:
        return None
    value, odd = finite_values({"": last.value})
    return LastPointOut(
        x=last.time_s if x == "time" else last.step,
        y=value[""],
        nonfinite=odd.get(""),
    )


@router.get("/{job_id}/metrics.csv", openapi_extra={"responses": {200: {"content": {"text/csv": {}}}}})
def download_job_metrics(request: ApiRequest, job_id: str, chosen: Query[MetricNames]) -> Download:
    """All stored points as CSV: series, attempt, step, time, value; including repeated steps."""
    job = find_job(Job.objects.all(), request.user, job_id)
    names = None if chosen.names is None else chosen.names.split(",")
    folder, seq = _folder(job).metrics, job.metric_seq
    blocks = series.read_points(folder, names, until_seq=seq) if seq else iter(())
    return send_generated(
        request, write_points(blocks), f"{job.short_id}-metrics.csv", "text/csv; charset=utf-8"
    )


@router.get("/{job_id}/checkpoints", response=CheckpointsOut)
def list_checkpoints(request: ApiRequest, job_id: str) -> CheckpointsOut:
    """The kept checkpoints, oldest first."""
    job = find_job(Job.objects.all(), request.user, job_id)
    listed = checkpoints.listed(job)
    newest = {row.step: row.pk for row, _ in listed}  # a step names its newest checkpoint
    items = [
        show_checkpoint(row, generation, request.path, by_name=newest[row.step] != row.pk)
        for row, generation in listed
    ]
    unkept = read_unkept(_folder(job), job.spec_fields.get("checkpoint_glob"))
    return CheckpointsOut(
        next=None,
        previous=None,
        results=items,
        unkept=[UnkeptOut(path=file.path, times=file.times, glob=file.glob) for file in unkept],
    )


@router.get(
    "/{job_id}/checkpoints/{step}", openapi_extra={"responses": {200: {"content": {"application/x-tar": {}}}}}
)
def download_checkpoint(request: ApiRequest, job_id: str, step: str) -> Download:
    """A checkpoint and its manifest as a tar archive, by step or name; files have their names from the job's folder."""
    job = find_job(Job.objects.all(), request.user, job_id)
    checkpoint = checkpoints.find(job, step)
    generation = checkpoints.on_disk(checkpoint)
    names = {file.kept: file.path for file in generation.files}
    return send_tar(request, generation.folder, f"{job.short_id}-{step}", names)


@router.get(
    "/{job_id}/checkpoints/{step}/files/{filepath:path}",
    openapi_extra={"responses": {200: {"content": {"application/octet-stream": {}}}}},
)
def download_checkpoint_file(request: ApiRequest, job_id: str, step: str, path: str) -> Download:
    """One file of a checkpoint, as an attachment."""
    job = find_job(Job.objects.all(), request.user, job_id)
    folder, stored_path = checkpoints.file_of(checkpoints.find(job, step), path)
    return send_file(request, open_named(folder, stored_path), path)


@router.delete("/{job_id}/checkpoints/{step}", response={204: None})
def delete_checkpoint(request: ApiRequest, job_id: str, step: str) -> HttpResponse:
    """Delete a checkpoint for good."""
    job = find_job(Job.objects.all(), request.user, job_id)
    rights.check_steer(request.user, job)
    checkpoints.remove(job, checkpoints.find(job, step), by=request.user.get_username())
    text = f"Deleted checkpoint {step}."
    steering.note(request.user, job, "job.checkpoint_deleted", text, address=audit.address_of(request))
    return HttpResponse(status=204)


class FilePlace(BaseModel):
    folder: results.Place | None = Field(None, description="default: output first, then work")


@router.get("/{job_id}/files", response=FilesOut)
def list_job_files(request: ApiRequest, job_id: str) -> FilesOut:
    """Files in the job's output folder, and those that the job wrote beside its script; without links and caches."""
    job = find_job(Job.objects.all(), request.user, job_id)
    files, truncated = results.list_results(job)
    listed = [_show_file(file, request.path) for file in files]
    return FilesOut(next=None, previous=None, results=listed, truncated=truncated)


def _show_file(file: results.Result, address: str) -> FileOut:
    name = results.printable(file.path)
    place = "?folder=work" if file.place == "work" else ""
    return FileOut(
        path=name,
        folder=file.place,
        size_bytes=file.size_bytes,
        modified_at=moment(file.modified_s),
        download=f"{address}/{quote(name)}{place}",
    )


@router.get(
    "/{job_id}/files/{filepath:path}",
    openapi_extra={"responses": {200: {"content": {"application/octet-stream": {}}}}},
)
def download_job_file(request: ApiRequest, job_id: str, path: str, place: Query[FilePlace]) -> Download:
    """One file, as an attachment."""
    job = find_job(Job.objects.all(), request.user, job_id)
    _, file = results.open_result(job, path, place.folder)
    return send_file(request, file, path)


@router.get("/{job_id}/diff", openapi_extra={"responses": {200: {"content": {"text/plain": {}}}}})
def download_diff(request: ApiRequest, job_id: str) -> Download:
    """What the uploaded code differed in from its commit, as git shows it; 404 where that is nothing or unknown."""
    job = find_job(Job.objects.all(), request.user, job_id)
    return send_file(request, open_named(settings.HOME.bundles / job.bundle, DIFF_FILE), DIFF_FILE)


def _folder(job: Job) -> JobFolder:
    folder: JobFolder = settings.HOME.job(job.pk)
    return folder
