"""The rows of a submit: a job, or all jobs of an array, with their first event and the request for a pass."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from berth.shared import words
from berth.shared.arguments import values_by_name
from orchestrator.facts.events import Happened
from orchestrator.jobs import fetches, lifecycle, memory_claims
from orchestrator.jobs.environments import requests
from orchestrator.jobs.environments.declared import Declared
from orchestrator.jobs.submission import checks
from orchestrator.live import wakeups
from orchestrator.models import (
    Environment,
    EnvironmentState,
    Errand,
    Job,
    JobArray,
    JobEvent,
    JobState,
    Pool,
)
from orchestrator.models.jobs import Columns
from orchestrator.people import agents, audit
from orchestrator.sentences.waits import NOT_SEEN
from orchestrator.spec.arrays import ArraySpec
from orchestrator.spec.job_spec import JobSpec

NOT_KEPT = frozenset({"source", "array"})  # of a spec
FIRST_COLUMNS = frozenset({"owner_id", "event_count", "wait_code"})  # which nothing but the submit writes


def columns_of(user: AbstractBaseUser, spec: JobSpec, bundle: str) -> Columns:
    """The columns of a job's row, without its times and files."""
    pool = Pool.objects.get(pk=spec.pool)
    columns: Columns = {
        "owner_id": user.pk,
        "pool_id": spec.pool,
        "name": spec.name or spec.started_as[:200],
        "tags": spec.tags,
        "project_id": spec.project,
        "visibility": checks.visibility_of(spec, pool),
        "spec_fields": spec.model_dump(mode="json", exclude=set(NOT_KEPT)),
        "arguments": values_by_name(spec.args),
        "bundle": bundle,
        "priority": spec.priority,
        "gpus": spec.device_count,
        "time_limit_s": spec.time_limit_s,
        "not_before": spec.not_before,
        "total_steps": spec.total_steps,
        "agent": agents.mark_of(user),
        "event_count": 1,
        "wait_code": NOT_SEEN,
    }
    job = Job(**columns)
    job.pool = pool
    columns["memory_claim"] = memory_claims.claim_of(job).as_json()
    return columns


def create(
    user: AbstractBaseUser,
    spec: JobSpec,
    columns: Columns,
    *,
    parent: Job | None = None,
    resume: bool = False,
) -> Job:
    """Write the job, or all jobs of an array; returns the first."""
    now = timezone.now()
    columns |= {"submitted_at": now, "queued_at": now}
    columns |= {"parent": parent, "resume_job": parent if resume else None}
    if spec.array is not None:
        jobs = _array_members(spec.array, columns)
    elif parent is not None and parent.array is not None:
        # A retry takes the place of the member that it repeats.
        jobs = [Job(**columns, array=parent.array, array_index=parent.array_index)]
    else:
        jobs = [Job(**columns)]
    Job.objects.bulk_create(jobs)
    if parent is None:
        fetches.ask(spec, jobs)
    else:
        fetches.ask_again(jobs[0], parent)
    said = {"number": 1, "at": now, "to_state": JobState.QUEUED, "actor": agents.name_of(user)}
    JobEvent.objects.bulk_create(JobEvent(job=job, kind=Happened.SUBMITTED, **said) for job in jobs)
    if agents.agent_of(user) is not None:
        subject = f"job {jobs[0].short_id}"
        with audit.in_english():
            audit.record(user, "job.submitted", subject, f"Submitted {words.plural(len(jobs), 'job')}.")
    lifecycle.queue_errand(jobs[0], Errand.SCHEDULE, now=now)  # sent before the news for views
    lifecycle.announce(jobs[0])
    return jobs[0]


def _array_members(spec: ArraySpec, columns: Mapping[str, Any]) -> list[Job]:
    """The jobs of an array, in the order of their indices, which is that of their ids."""
    indices = spec.members
    array = JobArray.objects.create(
        count=len(indices), at_most=spec.at_most, created_at=columns["submitted_at"]
    )
    name = columns["name"]
    members = []
    for index in indices:
        end = f"[{index}]"
        members.append(
            Job(**{**columns, "name": f"{name[: 200 - len(end)]}{end}"}, array=array, array_index=index)
        )
    return members


def environment_row(declared: Declared | None) -> Environment | None:
    """The row of what a job needs, inside the caller's transaction; a worker is asked to build it."""
    return None if declared is None else ask_for(requests.row_for(declared, timezone.now()))


def ask_for(row: Environment) -> Environment:
    """The same row; a worker is asked to build it unless that was done."""
    if row.state != EnvironmentState.READY:
        wakeups.prepare(row.pk)
    return row
