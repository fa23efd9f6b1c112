"""What would start a waiting job now: the scheduler's own ``decide`` on a state with one thing changed."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from orchestrator import placement, scheduling
from orchestrator.models import LEASED_STATES, Job, JobState
from orchestrator.spec import GIB

LONGEST_SEARCH_S = 0.3
_SHORTER_S = (4 * 3600.0, 3600.0, 600.0)


@dataclass(frozen=True, slots=True)
class Change:
    """One field of the job, and the value with which it would start at once."""

    change: str
    value: float | int


def changes_that_start(job: Job) -> list[Change]:
    """The smallest changes, one a field, that would start a queued job now; empty where none was found.

    The search is short: fewer devices, less memory on each, a time limit that fits before a reservation.
    """
    if job.state != JobState.QUEUED:
        return []
    deadline = time.monotonic() + LONGEST_SEARCH_S
    states = [JobState.QUEUED, *LEASED_STATES]
    jobs = Job.objects.filter(state__in=states, pool=job.pool_id).select_related("owner", "array")
    state = placement.snapshot(timezone.now(), {str(each.pk): each for each in jobs})
    found: dict[str, Change] = {}
    for candidate, changed in _candidates(job):
        if time.monotonic() > deadline:
            break
        if candidate.change not in found and _starts(state, str(job.pk), changed):
            found[candidate.change] = candidate
    return list(found.values())


def _candidates(job: Job) -> Iterator[tuple[Change, dict[str, Any]]]:
    """Changes to try, for each field the smallest first, with the fields of the scheduler's job."""
    for gpus in _fewer(job.gpus):
        yield Change("gpus", gpus), {"gpus": gpus}
    memory_gib = job.spec_fields.get("gpu_memory_gib")
    for part in (0.75, 0.5, 0.25) if memory_gib else ():
        value = round(memory_gib * part, 1)
        yield Change("gpu_memory_gib", value), {"memory_bytes": round(value * GIB)}
    for limit_s in _SHORTER_S:
        if job.time_limit_s is None or limit_s < job.time_limit_s:
            yield Change("time_limit_s", limit_s), {"time_limit_s": limit_s}


def _fewer(gpus: int) -> Sequence[int]:
    """One less, then halves: few tries, and the sizes that people use."""
    values = [gpus - 1] if gpus > 1 else []
    while gpus > 1:
        gpus //= 2
        values.append(gpus)
    return list(dict.fromkeys(values))


def _starts(state: scheduling.State, job_id: str, changed: dict[str, Any]) -> bool:
    queued = tuple(replace(each, **changed) if each.id == job_id else each for each in state.queued)
    decisions = scheduling.decide(replace(state, queued=queued), scheduling.Policy())
    return any(each.job_id == job_id for each in decisions.start)
