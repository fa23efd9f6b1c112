"""Who is served first, and what owners may say to it: the order of their own jobs among themselves.

Whatever owners wish, nobody else's job is served later for it: the n-th of an owner's jobs never gets a
better place than the n-th had without the wish.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from orchestrator.scheduler.core.ranking import TRIAL, Standing
from orchestrator.scheduler.core.types import Job, QueuedJob

_BEHIND = 1e-6  # seconds: the same place in line, but behind


def serve_order(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Higher priority first, then who came first; ties end on the id.  Wishes exchange places."""
    jobs = list(jobs)
    places = {job.id: (-job.priority, job.submitted, job.id) for job in jobs}
    for group in _wished(jobs):
        taken = sorted(places[job.id] for job in group)
        places.update((job.id, place) for job, place in zip(group, taken, strict=True))
    return sorted(jobs, key=lambda job: places[job.id])


def heed_wishes(jobs: Iterable[Job], standings: dict[str, Standing]) -> None:
    """Change the standings of jobs, queued and running, so that owners' wishes hold.

    Jobs on trial go by when they came, and so do those with equal work left: they exchange their turns.
    Otherwise the work decides, and lending a short job's rank to a long one would cost others: there the
    job that is to come later steps behind the other.
    """
    for group in _wished(jobs):
        for equals in _equals(group, standings):
            turns = sorted((standings[id_].value, standings[id_].turn) for id_ in equals)
            for id_, (value, turn) in zip(equals, turns, strict=True):
                standings[id_] = standings[id_]._replace(value=value, turn=turn)
        waiting = [job.id for job in group if isinstance(job, QueuedJob)]  # what has begun is behind nobody
        for ahead, id_ in pairwise(waiting):
            last = standings[ahead]
            if standings[id_] <= last:
                standings[id_] = standings[id_]._replace(
                    band=last.band, phase=last.phase, value=last.value, turn=last.turn + _BEHIND
                )


def _equals(group: Iterable[Job], standings: Mapping[str, Standing]) -> list[list[str]]:
    """The jobs of a group between whom only their turns decide."""
    found: dict[float | None, list[str]] = defaultdict(list)
    for job in group:
        standing = standings[job.id]
        found[None if standing.phase == TRIAL else standing.value].append(job.id)
    return list(found.values())


def _wished(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs whose owner gave them an order, as wished: one list for each owner, pool and priority."""
    groups: dict[tuple[str, str, int], list[Job]] = defaultdict(list)
    for job in jobs:
        if job.wish is not None:
            groups[job.owner, job.pool, job.priority].append(job)
    return [sorted(group, key=lambda job: (job.wish or 0, job.id)) for group in groups.values()]
