"""Changes that would start a waiting job now: the scheduler's own ``decide`` on a state with one change."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from django.contrib.auth.models import AbstractBaseUser

from orchestrator.exceptions import Forbidden
from orchestrator.models import Job, Pool
from orchestrator.people import agents, rights
from orchestrator.scheduler import core, passes
from orchestrator.scheduler.passes.facts import BEHIND_PEOPLE
from orchestrator.spec.job_spec import GIB

LONGEST_SEARCH_S = 1.0  # reached when more than 10,000 jobs wait
_SHORTER_S = (4 * 3600.0, 3600.0, 600.0)
_PRIORITIES = 3  # values to try, the next higher ones in use


@dataclass(frozen=True, slots=True)
class Change:
    """One field of a job, and the value with which the job would start at once."""

    change: str
    value: float | int | str
    stops: int = 0  # jobs that would first be stopped for it


class JobChange(TypedDict, total=False):
    """The fields of ``core.QueuedJob`` that a change sets."""

    gpus: int
    memory_bytes: int
    time_limit_s: float
    pool: str
    priority: int


@dataclass(frozen=True, slots=True)
class Search:
    """The smallest changes, one per field, that would start a waiting job now."""

    changes: Sequence[Change] = ()
    complete: bool = True  # False: there was no time to try them all


def search(state: core.State, job: Job, viewer: AbstractBaseUser) -> Search:
    """Search for changes that would start a waiting job; empty if its devices are already being cleared.

    Tries fewer devices, less memory on each, a time limit that fits before a reservation, another pool, and a higher
    priority if the viewer may set one.
    """
    if _is_being_cleared(state, str(job.pk)):
        return Search()
    # The job's own backfill reservation must not block its changed self.
    others = tuple(one for one in state.reservations if one.job_id != str(job.pk))
    state = replace(state, reservations=others)
    deadline = time.monotonic() + LONGEST_SEARCH_S
    changes: dict[str, Change] = {}
    for candidate, changed in _candidates(state, job, viewer):
        if time.monotonic() > deadline:
            return Search(list(changes.values()), complete=False)
        if candidate.change in changes:
            continue
        stops = _stops_needed(state, str(job.pk), changed)
        if stops is not None:
            changes[candidate.change] = replace(candidate, stops=stops)
    return Search(list(changes.values()))


def _is_being_cleared(state: core.State, job_id: str) -> bool:
    """Whether jobs are being stopped on devices that are reserved for this one."""
    reserved = {device for one in state.reservations if one.job_id == job_id for device in one.device_ids}
    return any(
        other.stopping and any(share.device_id in reserved for share in other.shares)
        for other in state.running
    )


def _candidates(state: core.State, job: Job, viewer: AbstractBaseUser) -> Iterator[tuple[Change, JobChange]]:
    """Changes to try, the smallest of each field first, each with the fields of ``core.Job`` that it sets."""
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
        yield Change("priority", priority), {"priority": priority - _behind(job)}


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


def _behind(job: Job) -> int:
    """What a job's priority counts less than it says, as passes see it: an agent's job is behind people's."""
    return BEHIND_PEOPLE if job.agent else 0


def _higher(state: core.State, job: Job, viewer: AbstractBaseUser) -> list[int]:
    """Priorities just above the ones of other jobs in the pool, up to the viewer's highest."""
    if agents.agent_of(viewer) is not None and not job._state.adding:
        return []  # it may choose a priority at the submit only
    highest = rights.HIGHEST_PRIORITY[rights.right_in(viewer, job.pool_id)]
    others = {
        other.priority + _behind(job)
        for other in (*state.queued, *state.running)
        if other.pool == job.pool_id
    }
    above = {priority + 1 for priority in others if job.priority <= priority < highest}
    return sorted(above)[:_PRIORITIES]


def _stops_needed(state: core.State, job_id: str, changed: JobChange) -> int | None:
    """How many jobs would be stopped so that the changed job starts; None if it would still wait."""
    queued = [replace(job, **changed) if job.id == job_id else job for job in state.queued]
    pool = next(job.pool for job in queued if job.id == job_id)
    rivals = tuple(job for job in queued if job.pool == pool)
    decisions = core.decide(replace(state, queued=rivals), passes.POLICY, tell=False)
    if any(start.job_id == job_id for start in decisions.start):
        return 0
    return sum(preemption.for_job_id == job_id for preemption in decisions.preempt) or None
