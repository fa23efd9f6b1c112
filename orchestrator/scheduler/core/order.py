"""The order in which jobs are served, and the order that owners give their own jobs.

An owner's order never delays another owner's job: the n-th of an owner's jobs never gets a better place than
the n-th had without it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from orchestrator.scheduler.core.ranking import TRIAL, Standing
from orchestrator.scheduler.core.types import Job, QueuedJob

_BEHIND = 1e-6  # seconds: right behind the other job


def serve_order(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Higher priority first, then earlier submits, then ids; jobs of an owner's order exchange their places."""
    jobs = list(jobs)
    places = {job.id: (-job.priority, job.submitted, job.id) for job in jobs}
    for group in _owner_orders(jobs):
        taken = sorted(places[job.id] for job in group)
        places.update((job.id, place) for job, place in zip(group, taken, strict=True))
    return sorted(jobs, key=lambda job: places[job.id])


def apply_owner_order(jobs: Iterable[Job], standings: dict[str, Standing]) -> None:
    """Change the standings of queued and running jobs to follow the orders of their owners.

    Jobs on trial rank by their submit time, and so do jobs with equal work remaining: they exchange turns.
    Otherwise the work decides, and giving a short job's rank to a long one would cost other owners: there the
    job that should come later steps behind the other.
    """
    for group in _owner_orders(jobs):
        for equals in _equals(group, standings):
            turns = sorted((standings[id_].value, standings[id_].turn, standings[id_].tie) for id_ in equals)
            for id_, (value, turn, tie) in zip(equals, turns, strict=True):
                standings[id_] = standings[id_]._replace(value=value, turn=turn, tie=tie)
        waiting = [job.id for job in group if isinstance(job, QueuedJob)]  # running jobs are behind none
        for ahead, id_ in pairwise(waiting):
            last = standings[ahead]
            if standings[id_] <= last:
                standings[id_] = standings[id_]._replace(
                    band=last.band, phase=last.phase, value=last.value, turn=last.turn + _BEHIND
                )


def _equals(group: Iterable[Job], standings: Mapping[str, Standing]) -> list[list[str]]:
    """Sets of jobs of a group that differ only in their turns."""
    equals: dict[float | None, list[str]] = defaultdict(list)
    for job in group:
        standing = standings[job.id]
        equals[None if standing.phase == TRIAL else standing.value].append(job.id)
    return list(equals.values())


def _owner_orders(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs in the order that their owner gave them: one list per owner, pool and priority."""
    groups: dict[tuple[str, str, int], list[Job]] = defaultdict(list)
    for job in jobs:
        if job.owner_place is not None:
            groups[job.owner, job.pool, job.priority].append(job)
    return [sorted(group, key=lambda job: (job.owner_place or 0, job.id)) for group in groups.values()]
