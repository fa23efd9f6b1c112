"""Logs of one rank, and of all ranks merged."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from django.conf import settings
from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.connections import has_left_of
from orchestrator.api.http.downloads import moment
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import NotFound, Sentence
from orchestrator.models import Attempt, Job
from orchestrator.store.logs.chunks import read_log
from orchestrator.store.logs.lines import MOST_LINES, show_lines
from orchestrator.store.logs.merged import MergedLine, count_merged, read_merged, search_merged
from orchestrator.store.logs.search import LONGEST_QUERY, search
from orchestrator.store.logs.text import display_text
from orchestrator.supervisor.protocol.folder import AttemptFolder

router = Router()

T = TypeVar("T")

READERS = 3  # the largest log occupies a thread for about a second; others queue
_readers = ThreadPoolExecutor(READERS, thread_name_prefix="log reader")


def read_in_turn(read: Callable[[], T]) -> T:
    """Run ``read`` in the log readers' threads and wait for it; for views, which have threads of their own."""
    return _readers.submit(read).result()


async def read_beside(read: Callable[[], T]) -> T:
    """Run ``read`` in the log readers' threads; for the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_readers, read)


class LogLineOut(BaseModel):
    number: int = Field(description="from 0")
    offset: int = Field(description="of the line's first byte in the log")
    text: str


class LogLinesOut(BaseModel):
    attempt: int
    rank: int
    total: int = Field(description="lines of the log, including a last one without a newline")
    end: int = Field(description="offset after the last complete line of this answer")
    read_to: int = Field(
        description="offset after everything in this answer, including a line without a newline"
    )
    open: bool = Field(description="the last line of this answer has no newline yet")
    lines: list[LogLineOut]


class MergedLineOut(LogLineOut):
    number: int = Field(description="among the lines of all ranks, from 0")
    rank: int
    seen_at: datetime = Field(description="when the agent saw it, to about a second")


class MergedLinesOut(BaseModel):
    attempt: int
    total: int = Field(
        description="merged lines of all ranks; those of about the last second are not merged yet"
    )
    lines: list[MergedLineOut]


class MergedHitsOut(BaseModel):
    attempt: int
    total: int = Field(description="lines that match in the logs of all ranks")
    more: bool = Field(description="there are more matches; counting stopped")
    hits: list[MergedLineOut]


class LogHitsOut(BaseModel):
    attempt: int
    rank: int
    total: int = Field(description="lines that match in the whole log")
    more: bool = Field(description="there are more matches; counting stopped")
    hits: list[LogLineOut]


TEXT = {"text/plain": {"schema": {"type": "string"}}}


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
    q: str = Field(max_length=LONGEST_QUERY, description="text to find; with `regex` an RE2 expression")
    regex: bool = False
    case: bool = Field(False, description="match case")
    start: Annotated[int, Field(ge=0, le=2**53)] = Field(
        0, alias="from", description="skip this many matches; they still count in total"
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class LogSearch(LogPlace, Wanted):
    pass


@router.get("/{job_id}/logs", openapi_extra={"responses": {200: {"content": TEXT}}})
def read_job_log(request: ApiRequest, job_id: str, window: Query[LogWindow]) -> HttpResponse:
    """Raw bytes of a log from an offset; X-Next-Offset is where to continue."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt, window.rank)
    log = folder.log(window.rank)
    chunk = read_in_turn(lambda: read_log(log, window.offset, window.limit))
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
def read_job_log_lines(request: ApiRequest, job_id: str, window: Query[LineWindow]) -> LogLinesOut:
    """Lines of a log by number, as text that is safe to display, colors included; at most about 4 MiB."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt, window.rank)
    log, index = folder.log(window.rank), folder.log_index(window.rank)
    has_left = has_left_of(request)
    lines = read_in_turn(lambda: show_lines(log, index, window.start, window.count, has_left))
    return LogLinesOut.model_validate({"attempt": number, "rank": window.rank, **lines})


@router.get("/{job_id}/logs/search", response=LogHitsOut)
def search_job_log(request: ApiRequest, job_id: str, window: Query[LogSearch]) -> LogHitsOut:
    """One page of the lines that match, and the number of matches in the whole log."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt, window.rank)
    find = partial(
        search,
        folder.log(window.rank),
        folder.log_index(window.rank),
        window.q,
        regex=window.regex,
        case=window.case,
        first=window.start,
        limit=window.limit,
        has_left=has_left_of(request),
    )
    matches = read_in_turn(find)
    return LogHitsOut(
        attempt=number,
        rank=window.rank,
        total=matches.total,
        more=matches.more,
        hits=[_show_line(hit.number, hit.offset, hit.data) for hit in matches.hits],
    )


def find_log(job: Job, attempt: int | None, rank: int = 0) -> tuple[int, AttemptFolder]:
    """The attempt to read (default: the newest) and its folder.

    Raises:
        NotFound: the job has no such attempt or rank.
    """
    number = attempt or job.attempt_count
    if attempt and not Attempt.objects.filter(job=job, number=number).exists():
        raise NotFound(Sentence("The job has no attempt {number}.", number=number))
    if rank >= job.log_count:  # a single attempt may have had fewer
        last = job.log_count - 1
        raise NotFound(
            Sentence(
                "The job has no rank {rank}; give {ranks}.",
                rank=rank,
                ranks=Sentence("0 to {last}", last=last) if last else "0",
            )
        )
    folder: AttemptFolder = settings.HOME.job(job.pk).attempt(number)
    return number, folder


def _show_line(number: int, offset: int, data: bytes) -> LogLineOut:
    return LogLineOut(number=number, offset=offset, text=display_text(data))


class MergedWindow(AttemptPlace, Lines):
    pass


class MergedSearch(AttemptPlace, Wanted):
    pass


@router.get("/{job_id}/logs/merged", response=MergedLinesOut)
def read_merged_log(request: ApiRequest, job_id: str, window: Query[MergedWindow]) -> MergedLinesOut:
    """Lines of all ranks in the order in which they were seen; only for jobs on several devices."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt)
    index = folder.merged_index
    total = count_merged(index)
    log_of, has_left = partial(_log_of, folder), has_left_of(request)
    lines = read_in_turn(lambda: read_merged(index, log_of, window.start, window.count, has_left))
    return MergedLinesOut(
        attempt=number,
        total=max(total, lines[-1].number + 1) if lines else total,
        lines=[_show(line) for line in lines],
    )


@router.get("/{job_id}/logs/merged/search", response=MergedHitsOut)
def search_merged_log(request: ApiRequest, job_id: str, window: Query[MergedSearch]) -> MergedHitsOut:
    """One page of the lines of all ranks that match, and the number of matches."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt)
    search = partial(
        search_merged,
        folder.merged_index,
        partial(_log_of, folder),
        window.q,
        regex=window.regex,
        case=window.case,
        first=window.start,
        limit=window.limit,
        has_left=has_left_of(request),
    )
    matches, hits = read_in_turn(search)
    lines = [_show(hit) for hit in hits]
    return MergedHitsOut(attempt=number, total=matches.total, more=matches.more, hits=lines)


def _log_of(folder: AttemptFolder, rank: int) -> tuple[Path, Path]:
    return folder.log(rank), folder.log_index(rank)


def _show(line: MergedLine) -> MergedLineOut:
    return MergedLineOut(
        number=line.number,
        rank=line.rank,
        seen_at=moment(line.seen_s),
        offset=line.offset,
        text=display_text(line.data),
    )
