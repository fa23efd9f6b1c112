"""What a job looks like from outside."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from django.contrib.auth.models import User
from django.db.models import F, Prefetch, QuerySet
from django.urls import reverse
from django.utils import timezone

from berth import words
from orchestrator.jobs import checkpoints, training_plans
from orchestrator.jobs.launch import isolation
from orchestrator.models import (
    WAITING_STATES,
    Attempt,
    AttemptState,
    Checkpoint,
    Job,
    JobArray,
    JobEvent,
    JobState,
    Lease,
)
from orchestrator.people import rights
from orchestrator.scheduler import waiting
from orchestrator.spec.job_spec import JobSpec
from orchestrator.store.manifest import Generation

# Rows written before a field existed show its default.
_SPEC_DEFAULTS: Mapping[str, Any] = JobSpec().model_dump()
_SPEC_FIELDS = (
    "kind",
    "min_gpus",
    "gpu_memory_gib",
    "cpus",
    "memory_gib",
    "preemptible",
    "max_retries",
    "grace_period_s",
    "hang_timeout_s",
    "entrypoint",
    "args",
    "resume_args",
    "datasets",
    "depends_on",
    "secrets",
    "checkpoint_glob",
    "begin_anew",
    "total_steps",
    "python",
    "launcher",
)
MOST_CHECKPOINT_FILES = 200
_LINKS = ("explain", "events", "attempts", "logs", "metrics", "checkpoints", "files")


def with_attempt(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Load what ``show_job`` needs, with the same number of queries for one job and for five hundred."""
    newest = with_devices(Attempt.objects.filter(number=F("job__attempt_count")))
    return jobs.select_related("owner", "array").prefetch_related(
        Prefetch("attempts", queryset=newest, to_attr="newest_attempt")
    )


def with_devices(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    return attempts.prefetch_related(
        Prefetch("leases", queryset=Lease.objects.select_related("device").order_by("rank"))
    )


def show_job(job: Job, viewer: User, *, now: datetime | None = None) -> dict[str, Any]:
    """A job as ``JobOut`` has it; ``job`` comes from ``with_attempt``, or was made just now."""
    now = now or timezone.now()
    attempt = _newest_attempt(job)
    spec = {**_SPEC_DEFAULTS, **job.spec_fields}
    return {
        **{name: spec[name] for name in _SPEC_FIELDS},
        "env": rights.environment_of(job, viewer.pk),
        **_identity(job),
        **_course(job, attempt, now),
        **_outcome(job),
        "plan": training_plans.show(attempt) if attempt else None,
        "memory_claim": job.memory_claim or None,
        "idle_since": job.idle_since,
        "links": _links(job),
    }


def show_array(array: JobArray, index: int | None) -> dict[str, Any]:
    return {"id": array.pk, "index": index, "count": array.count, "at_most": array.at_most}


def show_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "state": attempt.state,
        "devices": [_show_lease(lease) for lease in attempt.leases.all()],
        "exit_kind": attempt.kind or None,
        "exit_detail": attempt.exit_detail,
        "ranks": attempt.ranks,
        "first_failure": attempt.first_failure,
        "log_tail": attempt.log_tail,
        "sandbox_level": attempt.sandbox_level,
        "sandbox": isolation.describe(attempt.sandbox_level, attempt.sandbox_walls),
        "created_at": attempt.created_at,
        "launched_at": attempt.launched_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "run_s": attempt.run_s,
        "peak_memory_bytes": attempt.peak_memory_bytes,
        "dropped_log_bytes": attempt.dropped_log_bytes,
        "resumed_from_step": attempt.resumed_from_step,
        "resumed_from": attempt.resumed_from,
        "last_step": attempt.last_step,
        "plan": training_plans.show(attempt),
    }


def show_explanation(job: Job, *, now: datetime | None = None) -> dict[str, Any]:
    """Why a job waits; where it does not, the sentence says what it does instead."""
    now = now or timezone.now()
    waits = job.state in WAITING_STATES
    queued = job.state == JobState.QUEUED
    when = words.start_range(job.start_earliest, job.start_latest, now)
    return {
        "sentence": waiting.sentence(job, now, when) if queued else _state_sentence(job),
        "reason": (job.wait_code or "scheduler") if queued else job.state if waits else "",
        "start_earliest": _still_ahead(job.start_earliest, now) if waits else None,
        "start_latest": _still_ahead(job.start_latest, now) if waits else None,
        "blocked_by": job.wait_blocked_by if waits else [],
        "ahead": job.wait_ahead if waits else 0,
    }


def _still_ahead(expected: datetime | None, now: datetime) -> datetime | None:
    """What the last pass expected; what it expected for a time that is over can come any moment."""
    return None if expected is None else max(expected, now)


def show_event(event: JobEvent) -> dict[str, Any]:
    return {
        "id": event.number,
        "time": event.at,
        "from": event.from_state or None,
        "to": event.to_state,
        "actor": event.actor,
        "reason": event.reason,
    }


def show_checkpoint(
    checkpoint: Checkpoint, kept: Generation | None, address: str, *, by_name: bool
) -> dict[str, Any]:
    """A checkpoint as ``CheckpointOut`` has it.

    Args:
        kept: what is on disk of it.
        by_name: another checkpoint of the same step is newer, so the address has to name this one.
    """
    named = f"{address}/{quote(checkpoint.name)}"
    files = kept.files[:MOST_CHECKPOINT_FILES] if kept else ()
    return {
        "path": checkpoints.called(kept),
        "file_count": len(kept.files) if kept else 0,
        "files": [
            {
                "path": file.path,
                "size_bytes": file.size_bytes,
                "download": f"{named}/files/{quote(file.path)}",
            }
            for file in files
        ],
        "name": checkpoint.name,
        "step": checkpoint.step,
        "attempt": checkpoint.attempt_number,
        "source": checkpoint.source,
        "size_bytes": checkpoint.size_bytes,
        "created_at": checkpoint.created_at,
        "download": named if by_name or checkpoint.step is None else f"{address}/{checkpoint.step}",
    }


def finite_values(values: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Metric values for JSON, and what those were that JSON cannot say (B47)."""
    shown: dict[str, float | None] = {}
    odd: dict[str, str] = {}
    for name, value in values.items():
        number = float(value) if isinstance(value, int | float | str) else math.nan
        if math.isfinite(number):
            shown[name] = value if isinstance(value, int | float) else number
        else:
            shown[name] = None
            odd[name] = "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
    return shown, odd


def _newest_attempt(job: Job) -> Attempt | None:
    if not job.attempt_count:
        return None
    loaded: list[Attempt] | None = getattr(job, "newest_attempt", None)
    if loaded is None:
        loaded = list(with_devices(Attempt.objects.filter(job=job, number=job.attempt_count)))
    return loaded[0] if loaded else None


def _identity(job: Job) -> dict[str, Any]:
    return {
        "id": job.pk,
        "short_id": job.short_id,
        "name": job.name,
        "owner": job.owner.username,
        "state": job.state,
        "reason": job.reason,
        "stop_reason": job.stop_reason or None,
        "parent": job.parent_id,
        "resume_job": job.resume_job_id,
        "pool": job.pool_id,
        "priority": job.priority,
        "tags": job.tags,
        "gpus": job.gpus,
        "not_before": job.not_before,
        "array": None if job.array is None else show_array(job.array, job.array_index),
        "time_limit_s": job.time_limit_s,
        "bundle": job.bundle,
    }


def _course(job: Job, attempt: Attempt | None, now: datetime) -> dict[str, Any]:
    run_s = job.seconds_run
    if attempt and attempt.state != AttemptState.ENDED and attempt.started_at:
        run_s += max(0.0, (now - attempt.started_at).total_seconds())
    return {
        "submitted_at": job.submitted_at,
        "queued_at": job.queued_at,
        "started_at": job.first_started_at,
        "ended_at": job.ended_at,
        "next_try_at": job.next_try_at,
        "run_s": run_s,
        "attempt_count": job.attempt_count,
        "failures": job.failures,
        "attempt": show_attempt(attempt) if attempt else None,
        "explanation": show_explanation(job, now=now) if job.state in WAITING_STATES else None,
    }


def _outcome(job: Job) -> dict[str, Any]:
    values, odd = finite_values(job.last_values)
    return {
        "progress": _progress(job),
        "last_values": values,
        "nonfinite": odd,
        # What the job printed counts as a report only where a step or value was in it.
        "last_report_at": job.last_report_at if job.step is not None or values or odd else None,
        "metric_seq": job.metric_seq,
        "diverged_step": job.diverged_step,
        "exit_kind": job.exit_kind or None,
        "exit_detail": job.exit_detail,
    }


def _progress(job: Job) -> dict[str, Any]:
    eta_s = None
    if job.state == JobState.RUNNING and job.steps_per_s and job.total_steps and job.step is not None:
        eta_s = max(0, job.total_steps - job.step) / job.steps_per_s
    return {
        "step": job.step,
        "total_steps": job.total_steps,
        "unit": job.step_unit,
        "fraction": job.progress,
        "steps_per_s": job.steps_per_s,
        "eta_s": eta_s,
    }


def _show_lease(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.device_id,
        "index": lease.device.index,
        "label": lease.device.label,
        "kind": lease.device.kind,
        "rank": lease.rank,
        "memory_bytes": lease.memory_bytes,
    }


def _links(job: Job) -> dict[str, str]:
    address = f"{reverse('api:api-root')}jobs/{job.pk}"
    return {
        "self": address,
        "page": f"/jobs/{job.pk}",
        **{name: f"{address}/{name}" for name in _LINKS},
    }


def _state_sentence(job: Job) -> str:
    match job.state:
        case JobState.HELD:
            return "Held: it starts no sooner than it is released."
        case JobState.BACKOFF:
            return job.reason or "Waits a moment before the next attempt."
        case _:
            return f"The job is {job.state.replace('_', ' ')}; it does not wait."
