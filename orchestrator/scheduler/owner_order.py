"""The order that owners give their own waiting jobs; the scheduler heeds it where it costs nobody else."""

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from orchestrator.exceptions import Conflict, Impossible
from orchestrator.jobs import lifecycle
from orchestrator.jobs.steering import note
from orchestrator.models import Errand, Job, JobState
from orchestrator.people import rights
from orchestrator.scheduler.passes.turns import turn

LINE = ("wait_ahead", "-priority", Coalesce("own_place", 0), "queued_at", "pk")  # as waiting jobs are served


def move(user: AbstractBaseUser, job: Job, other: Job, *, behind: bool, address: str = "") -> Job:
    """Put a waiting job right before, or behind, another of the same owner, pool and priority.

    Raises:
        Forbidden: they may look only.
        Conflict: one of the two does not wait.
        Impossible: two jobs whose order is not their owner's to choose.
    """
    rights.check_steer(user, job)
    _check_pair(job, other)
    # Not while a pass decides: it would write down the old order after the new one.
    with turn(), transaction.atomic():
        line = list(companions(job).only("pk", "wait_ahead", "own_place").order_by(*LINE))
        ids = [each.pk for each in line]
        if job.pk not in ids or other.pk not in ids:
            raise Conflict("One of the two jobs waits no more, so their order stays.")
        _write(line, _moved(line, ids.index(job.pk), ids.index(other.pk), behind=behind))
        text = f"Moved {'behind' if behind else 'before'} {other}."
        lifecycle.remark(job, text, actor=user.get_username())
        lifecycle.queue_errand(job, Errand.SCHEDULE)
    note(user, job, "job.moved", text, address=address)
    job.refresh_from_db()
    return job


def companions(job: Job) -> QuerySet[Job]:
    """The waiting jobs among which this one's owner may order it, itself included."""
    same = {"owner": job.owner_id, "pool": job.pool_id, "priority": job.priority}
    return Job.objects.queued().filter(**same)


def _check_pair(job: Job, other: Job) -> None:
    for each in (job, other):
        if each.state != JobState.QUEUED:
            raise Conflict(f"{each} does not wait for devices, so it has no place in the queue.")
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
    """Number those that changed places, and those that were ordered earlier; what stood alone stays free."""
    places = [each.wait_ahead for each in before]  # rising: the line is sorted by them
    number, changed = 0, []
    for each, old, ahead in zip(after, before, places, strict=True):
        if each.pk == old.pk and each.own_place is None:
            continue
        number += 1
        if (each.own_place, each.wait_ahead) != (number, ahead):
            each.own_place, each.wait_ahead = number, ahead
            changed.append(each)
    Job.objects.bulk_update(changed, ["own_place", "wait_ahead"], batch_size=500)
