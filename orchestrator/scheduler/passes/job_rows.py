"""The jobs that a pass looks at, read fast: a queue of 10,000 takes tenths of a second."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import orjson
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import ForeignKey, Model, TextField
from django.db.models.base import ModelState
from django.db.models.functions import Cast

from orchestrator.models import LEASED_STATES, Job, JobArray, JobState, Pool

_PLAIN = (
    "id",
    "owner_id",
    "pool_id",
    "array_id",
    "preempted_for_id",
    "environment_id",
    "checkout_id",
    "name",
    "bundle",
    "priority",
    "gpus",
    "time_limit_s",
    "not_before",
    "state",
    "version",
    "submitted_at",
    "own_place",
    "attempt_count",
    "devices_kept_until",
    "seconds_run",
    "attained_gpu_s",
    "restart_cost_s",
    "seen_to_resume",
    "claim_floor_bytes",
    "step",
    "total_steps",
    "steps_per_s",
    "wait_code",
    "wait_ahead",
    "start_earliest",
    "start_latest",
)
_JSON = ("spec_fields", "agent", "memory_claim", "wait_blocked_by", "wait_facts")
_COLUMNS = (*_PLAIN, *_JSON)


def relevant_jobs(states: Collection[str] = (JobState.QUEUED, *LEASED_STATES)) -> list[Job]:
    """Jobs that wait or hold devices, newest first, with their owners, arrays and pools.

    Other columns are loaded on access.  Jobs with equal JSON share the objects decoded from it: do not change
    those objects.
    """
    # As text: most values are equal, and the database driver would decode every one of them.
    texts = [Cast(name, TextField()) for name in _JSON]
    rows = Job.objects.filter(state__in=states).values_list(*_PLAIN, *texts)
    decoded: dict[str, Any] = {}
    alias = connection.alias
    jobs = [_make(row, decoded, alias) for row in rows]
    _attach(jobs, "owner", User.objects.in_bulk({job.owner_id for job in jobs}))
    _attach(jobs, "pool", Pool.objects.in_bulk({job.pool_id for job in jobs}))
    _attach(jobs, "array", JobArray.objects.in_bulk({job.array_id for job in jobs if job.array_id}))
    return jobs


def _make(row: tuple[Any, ...], decoded: dict[str, Any], alias: str) -> Job:
    """Build a job from a row without the model's constructor, which would take most of a pass for a long queue."""
    job = Job.__new__(Job)
    state = ModelState()
    state.adding, state.db = False, alias
    values = dict(zip(_COLUMNS, row, strict=True))
    for name in _JSON:
        text = values[name]
        value = decoded.get(text)
        if value is None:
            value = decoded[text] = orjson.loads(text)
        values[name] = value
    job.__dict__.update(values, _state=state)
    return job


def _attach(jobs: Iterable[Job], name: str, rows: Mapping[Any, Model]) -> None:
    """Give each job its related object; jobs of one owner share one object."""
    field = cast("ForeignKey[Any, Any]", Job._meta.get_field(name))
    for job in jobs:
        key = job.__dict__[field.attname]
        field.set_cached_value(job, None if key is None else rows[key])
