"""The order that owners give their own waiting jobs; the scheduler follows it where it costs no other owner."""

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from orchestrator.exceptions import Conflict, Impossible, Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.steering import note
from orchestrator.models import Errand, Job, JobState
from orchestrator.people import agents, audit, rights
from orchestrator.scheduler.passes.terms import turn
from orchestrator.sentences import say

LINE = ("wait_ahead", "-priority", Coalesce("own_place", 0), "queued_at", "pk")  # as waiting jobs are served


def move(user: AbstractBaseUser, job: Job, other: Job, *, behind: bool, address: str = "") -> Job:
    """Move a waiting job right before or behind another of the same owner, pool and priority.

    Raises:
        Forbidden: the user may only view.
        Conflict: one of the jobs does not wait.
        Impossible: the owner cannot choose the order of these two jobs.
    """
    rights.check_steer(user, job)
    _check_pair(job, other)
    # Not during a pass, which would write the old order after the new one.
    with turn(), transaction.atomic():
        line = list(companions(job).only("pk", "wait_ahead", "own_place").order_by(*LINE))
        ids = [waiting.pk for waiting in line]
        if job.pk not in ids or other.pk not in ids:
            raise Conflict("One of the two jobs waits no more, so their order stays.")
        _write(line, _moved(line, ids.index(job.pk), ids.index(other.pk), behind=behind))
        moved = fact(Happened.MOVED, job=str(other), behind=behind)
        lifecycle.remark(job, moved, actor=agents.name_of(user))
        lifecycle.queue_errand(job, Errand.SCHEDULE)
    with audit.in_english():
        note(user, job, "job.moved", say(moved), address=address)
    job.refresh_from_db()
    return job


def companions(job: Job) -> QuerySet[Job]:
    """The waiting jobs among which the owner may move this job, including the job."""
    same = {"owner": job.owner_id, "pool": job.pool_id, "priority": job.priority}
    return Job.objects.queued().filter(**same)


def _check_pair(job: Job, other: Job) -> None:
    for one in (job, other):
        if one.state != JobState.QUEUED:
            raise Conflict(
                Sentence("{one} does not wait for devices, so it has no place in the queue.", one=one)
            )
    if job.pk == other.pk:
        raise Impossible("A job cannot be moved before itself; name another one.")
    if job.owner_id != other.owner_id:
        raise Impossible("Only jobs of one owner can be put in another order among themselves.")
    if (job.pool_id, job.priority) != (other.pool_id, other.priority):
        raise Impossible("Only jobs of the same pool and priority can be put in another order.")


def _moved(line: list[Job], at: int, to: int, *, behind: bool) -> list[Job]:
    rest = [*line[:at], *line[at + 1 :]]
    place = to - (to > at) + behind
    return [*rest[:place], line[at], *rest[place:]]


def _write(before: list[Job], after: list[Job]) -> None:
    """Number the jobs that changed places and the ones ordered earlier; all others stay without a number."""
    places = [job.wait_ahead for job in before]  # ascending: the line is sorted by them
    number, changed = 0, []
    for job, old, ahead in zip(after, before, places, strict=True):
        if job.pk == old.pk and job.own_place is None:
            continue
        number += 1
        if (job.own_place, job.wait_ahead) != (number, ahead):
            job.own_place, job.wait_ahead = number, ahead
            changed.append(job)
    Job.objects.bulk_update(changed, ["own_place", "wait_ahead"], batch_size=500)
