"""Jobs by what people type, and only those that the caller may see."""

import re
from uuid import UUID

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from pydantic import Field

from orchestrator.api.paging import Paging, chosen_ordering
from orchestrator.exceptions import Malformed, NotFound
from orchestrator.models import Job, JobState

SHORTEST_PART = 4
_PART = re.compile(r"[0-9a-f]{1,8}(?:-?[0-9a-f]+)*")
# By public name; ids are UUIDv7, so their order is that of the submits.
ORDERINGS = {
    "submitted_at": "pk",
    "queued_at": "queued_at",
    "priority": "priority",
    "name": "name",
    "state": "state",
    "gpus": "gpus",
}


class JobFilters(Paging):
    """``state`` takes several, separated by commas; ``q`` is part of a name or id."""

    state: str | None = Field(None, max_length=200)
    owner: str | None = Field(None, max_length=150)
    tag: str | None = Field(None, max_length=64)
    q: str | None = Field(None, max_length=200)
    pool: str | None = Field(None, max_length=64)
    array: UUID | None = None
    ordering: str = "-submitted_at"


def find_job(jobs: QuerySet[Job], user: User, text: str) -> Job:
    """The job that a full id or any unambiguous part of one names.

    Raises:
        NotFound: none that this user may see.
        Malformed: several.
    """
    visible = jobs.filter(pk__in=Job.objects.visible_to(user).filter(_named(text)).values("pk"))
    found = list(visible[:2])
    if not found:
        raise NotFound(f"There is no job {text[:40]!r}, or it is not yours to see.")
    if len(found) > 1:
        raise Malformed(f"Several jobs have {text[:40]!r} in their id; give more of it.")
    return found[0]


def find_jobs(jobs: QuerySet[Job], filters: JobFilters) -> tuple[QuerySet[Job], str]:
    """The jobs that the filters leave, and the column to order them by.

    Raises:
        Malformed: an unknown state or ordering.
    """
    if filters.state is not None:
        jobs = jobs.filter(state__in=_states(filters.state))
    if filters.owner is not None:
        jobs = jobs.filter(owner__username=filters.owner)
    if filters.pool is not None:
        jobs = jobs.filter(pool=filters.pool)
    if filters.array is not None:
        jobs = jobs.filter(array=filters.array)
    if filters.tag is not None:
        jobs = tagged(jobs, filters.tag)
    if filters.q is not None:
        jobs = jobs.filter(Q(name__icontains=filters.q) | _named(filters.q))
    return jobs, chosen_ordering(filters.ordering, ORDERINGS)


def tagged(jobs: QuerySet[Job], tag: str) -> QuerySet[Job]:
    """The jobs that have this tag, exactly."""
    if connection.vendor == "postgresql":
        return jobs.filter(tags__contains=[tag])
    has_tag = RawSQL(  # the tag is a parameter; SQLite has no contains lookup for JSON
        "EXISTS (SELECT 1 FROM json_each(orchestrator_job.tags) WHERE json_each.value = %s)", [tag]
    )
    return jobs.alias(has_tag=has_tag).filter(has_tag=True)


def _states(text: str) -> list[str]:
    states = text.split(",")
    if unknown := [state for state in states if state not in JobState.values]:
        raise Malformed(
            f"There is no state {unknown[0][:40]!r}; states are {', '.join(JobState.values)}.",
            fields={"state": [f"choose from {', '.join(JobState.values)}"]},
        )
    return states


def _named(text: str) -> Q:
    """Jobs by id or part of it; nothing where the text can be neither."""
    text = text.lower()
    try:
        return Q(pk=UUID(text))
    except ValueError:
        pass
    if len(text) < SHORTEST_PART or not _PART.fullmatch(text):
        return Q(pk__in=[])
    return Q(id__contains=text)
