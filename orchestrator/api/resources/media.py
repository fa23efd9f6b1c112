"""Images, histograms, tables and texts that a job's attempts reported."""

from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.downloads import moment
from orchestrator.api.http.paging import Page, whole
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import NotFound, Sentence
from orchestrator.models import Job
from orchestrator.store.layout import JobFolder
from orchestrator.store.metrics import media

router = Router()

MOST_ATTEMPTS = 20  # the newest
# As of any file of a job: never a page of this server.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, max-age=300",  # a slider goes back and forth
}


class MediumFilters(BaseModel):
    kind: Literal["image", "histogram", "table", "text"] | None = Field(None, description="only of this kind")
    name: str | None = Field(None, max_length=media.LONGEST_NAME, description="only of this name")


class MediumOut(BaseModel):
    attempt: int
    number: int = Field(description="in its attempt, from 0")
    step: int
    time: datetime
    kind: Literal["image", "histogram", "table", "text"]
    name: str
    content: str = Field(description="address of the picture (PNG), or of the values (JSON)")


class MediaOut(Page[MediumOut]):
    pass


class MediumValueOut(BaseModel):
    """What fits the kind; the other fields are null."""

    counts: list[int] | None = Field(None, description="of a histogram: values in each bin")
    edges: list[float] | None = Field(None, description="of a histogram: of its bins, one more than counts")
    not_finite: int | None = Field(None, description="of a histogram: values that were NaN or infinite")
    columns: list[str] | None = Field(None, description="of a table")
    rows: list[list[Any]] | None = Field(None, description="of a table: at most 1,000")
    rows_total: int | None = Field(None, description="of a table: as many as were reported")
    text: str | None = Field(None, description="of a text: at most 65,536 characters")
    characters: int | None = Field(None, description="of a text: as many as were reported")


def media_of(job: Job) -> list[media.Medium]:
    """What the newest attempts of a job reported, oldest first."""
    first = max(1, job.attempt_count - MOST_ATTEMPTS + 1)
    return media.list_media(folder_of(job), list(range(first, job.attempt_count + 1)))


def folder_of(job: Job) -> JobFolder:
    folder: JobFolder = settings.HOME.job(job.pk)
    return folder


def content_of(job: Job, medium: media.Medium) -> str:
    """The address of a picture or of values."""
    end = "image" if medium.kind == "image" else "value"
    return f"/api/v1/jobs/{job.pk}/media/{medium.attempt}/{medium.number}/{end}"


@router.get("/{job_id}/media", response=MediaOut)
def list_job_media(request: ApiRequest, job_id: str, filters: Query[MediumFilters]) -> Page[MediumOut]:
    """Images, histograms, tables and texts by attempt and step, of the newest 20 attempts."""
    job = find_job(Job.objects.all(), request.user, job_id)
    chosen = [
        each
        for each in media_of(job)
        if filters.kind in (None, each.kind) and filters.name in (None, each.name)
    ]
    return whole(
        MediaOut,
        [
            MediumOut(
                attempt=each.attempt,
                number=each.number,
                step=each.step,
                time=moment(each.time_s),
                kind=each.kind,  # type: ignore[arg-type]  # one of these
                name=each.name,
                content=content_of(job, each),
            )
            for each in chosen
        ],
    )


@router.get(
    "/{job_id}/media/{int:attempt}/{int:number}/image",
    openapi_extra={"responses": {200: {"content": {"image/png": {}}}}},
)
def read_job_image(request: ApiRequest, job_id: str, attempt: int, number: int) -> HttpResponse:
    """The PNG of an image; 404 if the file is not one."""
    job, medium = _find(request, job_id, attempt, number)
    if medium.kind != "image":
        raise NotFound(Sentence("This is a {kind}; ask for its value.", kind=medium.kind))
    try:
        return HttpResponse(media.read_image(folder_of(job), medium), "image/png", headers=_HEADERS)
    except media.NotReadable as error:
        raise NotFound(str(error)) from error


@router.get("/{job_id}/media/{int:attempt}/{int:number}/value", response=MediumValueOut, exclude_none=False)
def read_job_value(request: ApiRequest, job_id: str, attempt: int, number: int) -> MediumValueOut:
    """The values of a histogram, a table or a text; 404 if the file does not hold them."""
    job, medium = _find(request, job_id, attempt, number)
    if medium.kind == "image":
        raise NotFound("This is an image; ask for the image.")
    try:
        return MediumValueOut(**media.read_value(folder_of(job), medium))
    except media.NotReadable as error:
        raise NotFound(str(error)) from error


def _find(request: ApiRequest, job_id: str, attempt: int, number: int) -> tuple[Job, media.Medium]:
    job = find_job(Job.objects.all(), request.user, job_id)
    of_attempt = media.list_media(folder_of(job), [attempt]) if 1 <= attempt <= job.attempt_count else []
    for medium in of_attempt:
        if medium.number == number:
            return job, medium
    raise NotFound(Sentence("Attempt {attempt} has no number {number}.", attempt=attempt, number=number))
