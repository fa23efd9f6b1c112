"""What a job wrote: logs, metrics, checkpoints and files."""

import os
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

from django.conf import settings
from django.http import HttpResponse
from django.urls import register_converter
from django.urls.converters import PathConverter
from ninja import Query, Router
from pydantic import BaseModel, Field, ValidationInfo, WithJsonSchema, field_validator

from berth.chart_groups import chart_groups
from orchestrator.api.auth import ApiRequest
from orchestrator.api.departures import has_left_of
from orchestrator.api.downloads import list_files, moment, open_beneath, send_file, send_made, send_tar
from orchestrator.api.finding import find_job
from orchestrator.api.job_view import finite_values, show_checkpoint
from orchestrator.api.log_reads import read_in_turn
from orchestrator.api.metrics_csv import write_points
from orchestrator.api.moments import read_seconds
from orchestrator.api.paging import whole
from orchestrator.api.schemas import CheckpointsOut, FilesOut, LogHitsOut, LogLinesOut, MetricsOut
from orchestrator.exceptions import NotFound
from orchestrator.jobs import checkpoints, steering
from orchestrator.models import Attempt, Job
from orchestrator.people import audit, rights
from orchestrator.store import log_lines, log_search, logs, outside_checkpoints, series
from orchestrator.store.layout import JobFolder
from orchestrator.store.log_lines import MOST_LINES
from orchestrator.store.log_search import LONGEST_QUERY
from orchestrator.supervisor.folder import AttemptFolder

router = Router()

MANY_POINTS = 5_000
TEXT = {"text/plain": {"schema": {"type": "string"}}}
Window = Annotated[
    float,
    Field(allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]}),
]


class AttemptPlace(BaseModel):
    attempt: Annotated[int, Field(ge=1)] | None = Field(None, description="default: the newest")


class LogPlace(AttemptPlace):
    rank: Annotated[int, Field(ge=0, le=100_000)] = 0


class LogWindow(LogPlace):
    offset: Annotated[int, Field(ge=-(2**53), le=2**53)] = Field(0, description="negative: from the end")
    limit: Annotated[int, Field(ge=4, le=4 * 1024**2)] = 256 * 1024


class Lines(BaseModel):
    start: Annotated[int, Field(ge=-(2**53), le=2**53)] = Field(
        0, alias="from", description="number of the first line, from 0; negative: from the end"
    )
    count: Annotated[int, Field(ge=1, le=MOST_LINES)] = 200


class LineWindow(LogPlace, Lines):
    pass


class Wanted(BaseModel):
    q: str = Field(max_length=LONGEST_QUERY, description="a text; with `regex` an RE2 expression")
    regex: bool = False
    case: bool = Field(False, description="whether upper and lower case differ")
    start: Annotated[int, Field(ge=0, le=2**53)] = Field(
        0, alias="from", description="hits before are counted only"
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class LogSearch(LogPlace, Wanted):
    pass


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
    """As Django's, and with line breaks, which names of files may have."""

    regex = "(?s:.+)"


register_converter(FilePath, "filepath")


@router.get("/{job_id}/logs", openapi_extra={"responses": {200: {"content": TEXT}}})
def read_job_log(request: ApiRequest, job_id: str, window: Query[LogWindow]) -> HttpResponse:
    """Bytes of a log from an offset, as they were written; X-Next-Offset says where to read on."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt, window.rank)
    log = folder.log(window.rank)
    chunk = read_in_turn(lambda: logs.read_log(log, window.offset, window.limit))
    headers = {
        "X-Offset": str(chunk.offset),
        "X-Next-Offset": str(chunk.next_offset),
        "X-Log-Size": str(chunk.size),
        "X-Dropped-Bytes": str(chunk.dropped_bytes),
        "X-Attempt": str(number),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-store",
    }
    return HttpResponse(chunk.data, content_type="text/plain; charset=utf-8", headers=headers)


@router.get("/{job_id}/logs/lines", response=LogLinesOut)
def read_job_log_lines(request: ApiRequest, job_id: str, window: Query[LineWindow]) -> object:
    """Lines of a log by number, as text that is safe to show; colours stay. Of long lines fewer come, about 4 MiB."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt, window.rank)
    log, index = folder.log(window.rank), folder.log_index(window.rank)
    has_left = has_left_of(request)
    shown = read_in_turn(lambda: log_lines.show_lines(log, index, window.start, window.count, has_left))
    return {"attempt": number, "rank": window.rank, **shown}


@router.get("/{job_id}/logs/search", response=LogHitsOut)
def search_job_log(request: ApiRequest, job_id: str, window: Query[LogSearch]) -> object:
    """Lines that hold a text, a page of them and how many there are in the whole log."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt, window.rank)
    search = partial(
        log_search.search,
        folder.log(window.rank),
        folder.log_index(window.rank),
        window.q,
        regex=window.regex,
        case=window.case,
        first=window.start,
        limit=window.limit,
        has_left=has_left_of(request),
    )
    found = read_in_turn(search)
    return {
        "attempt": number,
        "rank": window.rank,
        "total": found.total,
        "more": found.more,
        "hits": [_show_line(hit.number, hit.offset, hit.data) for hit in found.hits],
    }


def find_log(job: Job, attempt: int | None, rank: int = 0) -> tuple[int, AttemptFolder]:
    """The attempt whose log is meant, and its folder.

    Raises:
        NotFound: the job has no such attempt or rank.
    """
    number = attempt or job.attempt_count
    if attempt and not Attempt.objects.filter(job=job, number=number).exists():
        raise NotFound(f"The job has no attempt {number}.")
    if rank >= job.spec_fields["gpus"]:  # an attempt of its own may have had fewer
        last = job.spec_fields["gpus"] - 1
        raise NotFound(f"The job has no rank {rank}; give {f'0 to {last}' if last else '0'}.")
    return number, _folder(job).attempt(number)


def _show_line(number: int, offset: int, data: bytes) -> dict[str, object]:
    return {"number": number, "offset": offset, "text": logs.display_text(data)}


@router.get("/{job_id}/metrics", response=MetricsOut)
def read_job_metrics(request: ApiRequest, job_id: str, window: Query[MetricWindow]) -> object:
    """Down-sampled series: mean, smallest and largest of each bucket, so no spike is lost."""
    job = find_job(Job.objects.all(), request.user, job_id)
    names = None if window.names is None else window.names.split(",")
    folder = _folder(job).metrics
    seq = job.metric_seq
    if not seq:
        return {"series": {}, "charts": [], "seq": 0}
    found = series.read_series(
        folder, names, window.x, window.start, window.end, window.max_points, until_seq=seq
    )
    newest = series.last_values(folder, until_seq=seq)
    shown = {
        name: {**each.as_json(), "last": _last_point(newest.get(name), window.x)}
        for name, each in found.items()
    }
    return {"series": shown, "charts": chart_groups(shown), "seq": seq}


def _last_point(last: series.LastValue | None, x: str) -> dict[str, object] | None:
    if last is None:
        return None
    value, odd = finite_values({"": last.value})
    return {
        "x": last.time_s if x == "time" else last.step,
        "y": value[""],
        "nonfinite": odd.get(""),
    }


@router.get("/{job_id}/metrics.csv", openapi_extra={"responses": {200: {"content": {"text/csv": {}}}}})
def download_job_metrics(request: ApiRequest, job_id: str, chosen: Query[MetricNames]) -> object:
    """Every stored point as CSV, not reduced: series, attempt, step, time, value; repeated steps too."""
    job = find_job(Job.objects.all(), request.user, job_id)
    names = None if chosen.names is None else chosen.names.split(",")
    folder, seq = _folder(job).metrics, job.metric_seq
    blocks = series.read_points(folder, names, until_seq=seq) if seq else iter(())
    return send_made(request, write_points(blocks), f"{job.short_id}-metrics.csv", "text/csv; charset=utf-8")


@router.get("/{job_id}/checkpoints", response=CheckpointsOut)
def list_checkpoints(request: ApiRequest, job_id: str) -> object:
    """Checkpoints that are kept, oldest first."""
    job = find_job(Job.objects.all(), request.user, job_id)
    listed = checkpoints.listed(job)
    newest = {row.step: row.pk for row, _ in listed}  # a step finds the newest checkpoint of it
    shown = [
        show_checkpoint(row, kept, request.path, by_name=newest[row.step] != row.pk) for row, kept in listed
    ]
    unkept = outside_checkpoints.read_unkept(_folder(job), job.spec_fields.get("checkpoint_glob"))
    return {
        **whole(shown),
        "unkept": [{"path": each.path, "times": each.times, "glob": each.glob} for each in unkept],
    }


@router.get(
    "/{job_id}/checkpoints/{step}", openapi_extra={"responses": {200: {"content": {"application/x-tar": {}}}}}
)
def download_checkpoint(request: ApiRequest, job_id: str, step: str) -> object:
    """A checkpoint with its manifest as a tar archive, by step or by name; files are called as in the job's folder."""
    job = find_job(Job.objects.all(), request.user, job_id)
    checkpoint = checkpoints.find(job, step)
    generation = checkpoints.on_disk(checkpoint)
    called = {file.kept: file.path for file in generation.files}
    return send_tar(request, generation.folder, f"{job.short_id}-{step}", called)


@router.get(
    "/{job_id}/checkpoints/{step}/files/{filepath:path}",
    openapi_extra={"responses": {200: {"content": {"application/octet-stream": {}}}}},
)
def download_checkpoint_file(request: ApiRequest, job_id: str, step: str, path: str) -> object:
    """One file of a checkpoint, as an attachment."""
    job = find_job(Job.objects.all(), request.user, job_id)
    folder, kept = checkpoints.file_of(checkpoints.find(job, step), path)
    return send_file(request, open_beneath(folder, kept), path)


@router.delete("/{job_id}/checkpoints/{step}", response={204: None})
def delete_checkpoint(request: ApiRequest, job_id: str, step: str) -> object:
    """Delete a checkpoint for good."""
    job = find_job(Job.objects.all(), request.user, job_id)
    rights.check_steer(request.user, job)
    checkpoints.remove(job, checkpoints.find(job, step), by=request.user.get_username())
    said = f"Deleted its checkpoint {step}."
    steering.note(request.user, job, "job.checkpoint_deleted", said, address=audit.address_of(request))
    return HttpResponse(status=204)


@router.get("/{job_id}/files", response=FilesOut)
def list_job_files(request: ApiRequest, job_id: str) -> object:
    """What the job wrote to its output folder; links are left out."""
    job = find_job(Job.objects.all(), request.user, job_id)
    files, truncated = list_files(_folder(job).output)
    listed = whole(
        [
            {
                # A name that is not UTF-8 is shown with replacement characters.
                "path": (shown := os.fsencode(path).decode(errors="replace")),
                "size_bytes": facts.st_size,
                "modified_at": moment(facts.st_mtime),
                "download": f"{request.path}/{quote(shown)}",
            }
            for path, facts in files
        ]
    )
    return {**listed, "truncated": truncated}


@router.get(
    "/{job_id}/files/{filepath:path}",
    openapi_extra={"responses": {200: {"content": {"application/octet-stream": {}}}}},
)
def download_job_file(request: ApiRequest, job_id: str, path: str) -> object:
    """One file, as an attachment."""
    job = find_job(Job.objects.all(), request.user, job_id)
    return send_file(request, open_beneath(_folder(job).output, path), path)


def _folder(job: Job) -> JobFolder:
    folder: JobFolder = settings.HOME.job(job.pk)
    return folder
