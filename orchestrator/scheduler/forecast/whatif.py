"""What would start a waiting job now: the scheduler's own ``decide`` on a state with one thing changed."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.models import AbstractBaseUser

from orchestrator.exceptions import Forbidden
from orchestrator.models import Job, Pool
from orchestrator.people import rights
from orchestrator.scheduler import core, passes
from orchestrator.spec.job_spec import GIB

LONGEST_SEARCH_S = 1.0  # reached where more than ten thousand jobs wait
_SHORTER_S = (4 * 3600.0, 3600.0, 600.0)
_PRIORITIES = 3  # values to try, the next higher ones in use


@dataclass(frozen=True, slots=True)
class Change:
    """One field of the job, and the value with which it would start at once."""

    change: str
    value: float | int | str
    stops: int = 0  # jobs that would be stopped for it first


@dataclass(frozen=True, slots=True)
class Search:
    """The smallest changes, one a field, that would start a waiting job now."""

    changes: Sequence[Change] = ()
    complete: bool = True  # False: there was no time to try them all


def search(state: core.State, job: Job, viewer: AbstractBaseUser) -> Search:
    """What would start a job that waits in this state; nothing where its devices are being cleared.

    Tried are fewer devices, less memory on each, a time limit that fits before a reservation, another pool, and a
    higher priority where the viewer may give one.
    """
    if _is_being_cleared(state, str(job.pk)):
        return Search()
    # What is kept for the job as it is must not stand in the way of the job as it could be.
    others = tuple(held for held in state.reservations if held.job_id != str(job.pk))
    state = replace(state, reservations=others)
    deadline = time.monotonic() + LONGEST_SEARCH_S
    found: dict[str, Change] = {}
    for candidate, changed in _candidates(state, job, viewer):
        if time.monotonic() > deadline:
            return Search(list(found.values()), complete=False)
        if candidate.change in found:
            continue
        stops = _stops_needed(state, str(job.pk), changed)
        if stops is not None:
            found[candidate.change] = replace(candidate, stops=stops)
    return Search(list(found.values()))


def _is_being_cleared(state: core.State, job_id: str) -> bool:
    """Whether jobs are being stopped on devices that are kept for this one."""
    kept = {device for held in state.reservations if held.job_id == job_id for device in held.device_ids}
    return any(
        other.stopping and any(share.device_id in kept for share in other.shares) for other in state.running
    )


def _candidates(
    state: core.State, job: Job, viewer: AbstractBaseUser
) -> Iterator[tuple[Change, dict[str, Any]]]:
    """Changes to try, for each field the smallest first, with the fields of the scheduler's job."""
    for gpus in _fewer(job.gpus):
        yield Change("gpus", gpus), {"gpus": gpus}
    claimed = job.claimed_bytes
    for part in (0.75, 0.5, 0.25) if claimed else ():
        value = round((claimed or 0) / GIB * part, 1)
        if value > 0:
            yield Change("gpu_memory_gib", value), {"memory_bytes": round(value * GIB)}
    for limit_s in _SHORTER_S:
        if job.time_limit_s is None or limit_s < job.time_limit_s:
            yield Change("time_limit_s", limit_s), {"time_limit_s": limit_s}
    for pool in _other_pools(job, viewer):
        yield Change("pool", pool), {"pool": pool}
    for priority in _higher(state, job, viewer):
        yield Change("priority", priority), {"priority": priority}


def _fewer(gpus: int) -> Sequence[int]:
    """One less, then halves: few tries, and the sizes that people use."""
    values = [gpus - 1] if gpus > 1 else []
    while gpus > 1:
        gpus //= 2
        values.append(gpus)
    return list(dict.fromkeys(values))


def _other_pools(job: Job, viewer: AbstractBaseUser) -> Iterator[str]:
    python = job.spec_fields.get("python")
    for pool in Pool.objects.exclude(pk=job.pool_id):
        try:
            rights.check_submit(viewer, pool)
        except Forbidden:
            continue
        if python is None or python in pool.pythons:
            yield pool.name


def _higher(state: core.State, job: Job, viewer: AbstractBaseUser) -> list[int]:
    """Priorities just above those of other jobs of the pool, as far as the viewer may go."""
    highest = rights.HIGHEST_PRIORITY[rights.right_in(viewer, job.pool_id)]
    others = {other.priority for other in (*state.queued, *state.running) if other.pool == job.pool_id}
    above = {priority + 1 for priority in others if job.priority <= priority < highest}
    return sorted(above)[:_PRIORITIES]


def _stops_needed(state: core.State, job_id: str, changed: dict[str, Any]) -> int | None:
    """How many jobs would be stopped so that the changed one starts; None where it would go on waiting."""
    queued = [replace(each, **changed) if each.id == job_id else each for each in state.queued]
    pool = next(each.pool for each in queued if each.id == job_id)
    rivals = tuple(each for each in queued if each.pool == pool)
    decisions = core.decide(replace(state, queued=rivals), passes.POLICY, tell=False)
    if any(each.job_id == job_id for each in decisions.start):
        return 0
    return sum(each.for_job_id == job_id for each in decisions.preempt) or None
