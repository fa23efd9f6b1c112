"""Find jobs by id, part of an id, or filters, among those that the caller may see."""

import re
from uuid import UUID

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from pydantic import Field

from orchestrator.api.http.paging import Paging, chosen_ordering
from orchestrator.exceptions import Malformed, NotFound, Sentence
from orchestrator.models import Job, JobState

SHORTEST_PART = 4
_PART = re.compile(r"[0-9a-f]{1,8}(?:-?[0-9a-f]+)*")
# Column by public name. Ids are UUIDv7, so they sort by submit time.
ORDERINGS = {
    "submitted_at": "pk",
    "queued_at": "queued_at",
    "priority": "priority",
    "name": "name",
    "state": "state",
    "gpus": "gpus",
}


class JobFilters(Paging):
    """``state`` takes several states, separated by commas; ``q`` is part of a name or id."""

    state: str | None = Field(None, max_length=200)
    owner: str | None = Field(None, max_length=150)
    tag: str | None = Field(None, max_length=64)
    project: str | None = Field(None, max_length=64, description="the project's name; empty: all")
    q: str | None = Field(None, max_length=200)
    pool: str | None = Field(None, max_length=64)
    array: UUID | None = None
    ordering: str = "-submitted_at"


def find_job(jobs: QuerySet[Job], user: User, text: str) -> Job:
    """Find a job by its id, or by any unambiguous part of it.

    Raises:
        NotFound: this user may see no such job.
        Malformed: several jobs match.
    """
    visible = jobs.filter(pk__in=Job.objects.visible_to(user).filter(_named(text)).values("pk"))
    matches = list(visible[:2])
    if not matches:
        raise NotFound(Sentence("There is no job {text!r}, or you may not see it.", text=text[:40]))
    if len(matches) > 1:
        raise Malformed(Sentence("Several job ids contain {text!r}. Give a longer part.", text=text[:40]))
    return matches[0]


def find_jobs(jobs: QuerySet[Job], filters: JobFilters) -> tuple[QuerySet[Job], str]:
    """Apply the filters; returns the jobs and the column to order them by.

    Raises:
        Malformed: an unknown state or ordering.
    """
    if filters.state is not None:
        jobs = jobs.filter(state__in=_states(filters.state))
    if filters.owner is not None:
        jobs = jobs.filter(owner__username=filters.owner)
    if filters.pool is not None:
        jobs = jobs.filter(pool=filters.pool)
    if filters.project is not None:
        jobs = jobs.filter(project=filters.project)
    if filters.array is not None:
        jobs = jobs.filter(array=filters.array)
    if filters.tag is not None:
        jobs = tagged(jobs, filters.tag)
    if filters.q is not None:
        jobs = jobs.filter(Q(name__icontains=filters.q) | _named(filters.q))
    return jobs, chosen_ordering(filters.ordering, ORDERINGS)


def tagged(jobs: QuerySet[Job], tag: str) -> QuerySet[Job]:
    """Jobs with exactly this tag."""
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
            Sentence(
                "There is no state {unknown!r}; states are {values}.",
                unknown=unknown[0][:40],
                values=", ".join(JobState.values),
            ),
            fields={"state": [Sentence("choose from {values}", values=", ".join(JobState.values))]},
        )
    return states


def _named(text: str) -> Q:
    """Jobs by id or part of one; matches nothing if the text can be neither."""
    text = text.lower()
    try:
        return Q(pk=UUID(text))
    except ValueError:
        pass
    if len(text) < SHORTEST_PART or not _PART.fullmatch(text):
        return Q(pk__in=[])
    return Q(id__contains=text)
