"""The logs of all ranks as one."""

from functools import partial
from pathlib import Path
from typing import Any

from ninja import Query, Router

from orchestrator.api.auth import ApiRequest
from orchestrator.api.departures import has_left_of
from orchestrator.api.downloads import moment
from orchestrator.api.finding import find_job
from orchestrator.api.job_output import AttemptPlace, Lines, Wanted, find_log
from orchestrator.api.log_reads import read_in_turn
from orchestrator.api.schemas import MergedHitsOut, MergedLinesOut
from orchestrator.models import Job
from orchestrator.store import log_merge, logs
from orchestrator.store.log_merge import MergedLine
from orchestrator.supervisor.folder import AttemptFolder

router = Router()


class MergedWindow(AttemptPlace, Lines):
    pass


class MergedSearch(AttemptPlace, Wanted):
    pass


@router.get("/{job_id}/logs/merged", response=MergedLinesOut)
def read_merged_log(request: ApiRequest, job_id: str, window: Query[MergedWindow]) -> object:
    """Lines of all ranks by number, in the order in which they were seen; only of jobs on several devices."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt)
    index = folder.merged_index
    total = log_merge.count_merged(index)
    log_of, has_left = partial(_log_of, folder), has_left_of(request)
    lines = read_in_turn(lambda: log_merge.read_merged(index, log_of, window.start, window.count, has_left))
    return {
        "attempt": number,
        "total": max(total, lines[-1].number + 1) if lines else total,
        "lines": [_show(line) for line in lines],
    }


@router.get("/{job_id}/logs/merged/search", response=MergedHitsOut)
def search_merged_log(request: ApiRequest, job_id: str, window: Query[MergedSearch]) -> object:
    """Lines of all ranks that hold a text, a page of them and how many there are."""
    job = find_job(Job.objects.all(), request.user, job_id)
    number, folder = find_log(job, window.attempt)
    search = partial(
        log_merge.search_merged,
        folder.merged_index,
        partial(_log_of, folder),
        window.q,
        regex=window.regex,
        case=window.case,
        first=window.start,
        limit=window.limit,
        has_left=has_left_of(request),
    )
    found, hits = read_in_turn(search)
    shown = [_show(hit) for hit in hits]
    return {"attempt": number, "total": found.total, "more": found.more, "hits": shown}


def _log_of(folder: AttemptFolder, rank: int) -> tuple[Path, Path]:
    return folder.log(rank), folder.log_index(rank)


def _show(line: MergedLine) -> dict[str, Any]:
    return {
        "number": line.number,
        "rank": line.rank,
        "seen_at": moment(line.seen_s),
        "offset": line.offset,
        "text": logs.display_text(line.data),
    }
