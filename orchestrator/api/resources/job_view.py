"""How REST shows jobs, attempts, events and checkpoints."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from django.contrib.auth.models import User
from django.db.models import F, Prefetch, QuerySet
from django.urls import reverse
from django.utils import timezone

from berth.shared import words
from orchestrator.api.resources.attempt_schemas import AttemptOut, LeaseOut, SandboxOut, TrainingPlanOut
from orchestrator.api.resources.schemas import (
    ArrayOut,
    BesideOut,
    CalibrationOut,
    ChangeOut,
    CheckoutOut,
    CheckpointFileOut,
    CheckpointOut,
    EventOut,
    ExplanationOut,
    JobLinks,
    JobOut,
    NeighbourOut,
    ProgressOut,
)
from orchestrator.jobs import checkpoints, training_plans
from orchestrator.jobs.launch import isolation
from orchestrator.models import (
    WAITING_STATES,
    Attempt,
    AttemptState,
    Checkpoint,
    Job,
    JobEvent,
    JobState,
    Lease,
)
from orchestrator.people import rights
from orchestrator.scheduler import passes, waiting
from orchestrator.scheduler.forecast.whatif import Change
from orchestrator.scheduler.passes.neighbours import beside_now
from orchestrator.sentences.waits import NOT_SEEN
from orchestrator.spec.job_spec import JobSpec
from orchestrator.store.checkpoints.manifest import Generation

# Rows from before a field existed show its default.
_SPEC_DEFAULTS: Mapping[str, Any] = JobSpec().model_dump()
# Fields that a job's row tells, after changes, or not at all.
_NOT_FROM_SPEC = frozenset(
    {
        "name",
        "pool",
        "gpus",
        "priority",
        "time_limit_s",
        "env",
        "tags",
        "project",
        "visibility",
        "not_before",
        "array",
        "source",
    }
)
_SPEC_FIELDS = tuple(name for name in _SPEC_DEFAULTS if name not in _NOT_FROM_SPEC)
MOST_CHECKPOINT_FILES = 200


def with_attempt(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Load what ``show_job`` needs, in the same number of queries for one job and for 500."""
    newest = with_devices(Attempt.objects.filter(number=F("job__attempt_count")))
    return jobs.select_related("owner", "array", "checkout").prefetch_related(
        Prefetch("attempts", queryset=newest, to_attr="newest_attempt")
    )


def with_devices(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    return attempts.prefetch_related(
        Prefetch("leases", queryset=Lease.objects.select_related("device").order_by("rank"))
    )


def show_job(job: Job, viewer: User, *, now: datetime | None = None) -> JobOut:
    """The job as one person sees it.

    Args:
        job: loaded by ``with_attempt``, or made just now.
    """
    now = now or timezone.now()
    attempt = _newest_attempt(job)
    spec = {**_SPEC_DEFAULTS, **job.spec_fields, **rights.texts_of(job, viewer.pk)}
    values, nonfinite = finite_values(job.last_values)
    has_reported = job.step is not None or values or nonfinite  # printing alone is no report
    return JobOut(
        **{name: spec[name] for name in _SPEC_FIELDS},
        id=job.pk,
        short_id=job.short_id,
        name=job.name,
        owner=job.owner.username,
        state=job.state,
        reason=job.reason,
        why=job.why or None,
        stop_reason=job.stop_reason or None,
        parent=job.parent_id,
        resume_job=job.resume_job_id,
        pool=job.pool_id,
        priority=job.priority,
        tags=job.tags,
        project=job.project_id,
        visibility=job.visibility,
        agent=job.agent.get("name"),
        gpus=job.gpus if spec["gpus"] else 0,
        not_before=job.not_before,
        array=_array(job),
        time_limit_s=job.time_limit_s,
        bundle=job.bundle,
        checkout=_checkout(job),
        env=rights.environment_of(job, viewer.pk),
        submitted_at=job.submitted_at,
        queued_at=job.queued_at,
        started_at=job.first_started_at,
        ended_at=job.ended_at,
        next_try_at=job.next_try_at,
        run_s=_run_s(job, attempt, now),
        attempt_count=job.attempt_count,
        failures=job.failures,
        attempt=None if attempt is None else show_attempt(attempt),
        plan=None if attempt is None else _training_plan(attempt),
        explanation=show_explanation(job, now=now) if job.state in WAITING_STATES else None,
        progress=_progress(job),
        last_values=values,
        nonfinite=nonfinite,
        last_report_at=job.last_report_at if has_reported else None,
        metric_seq=job.metric_seq,
        diverged_step=job.diverged_step,
        exit_kind=job.exit_kind or None,
        exit_detail=job.exit_detail,
        ending=job.ending or None,
        memory_claim=job.memory_claim or None,
        idle_since=job.idle_since,
        links=_links(job),
    )


def show_beside(job: Job) -> list[BesideOut]:
    """Its neighbours on shared devices and what they cost it; what its devices show, everybody may see."""
    return [
        BesideOut(
            device=one.device_label,
            jobs=[
                NeighbourOut(id=other.pk, name=other.name, owner=other.owner.username) for other in one.others
            ],
            slowdown=one.slowdown,
            measured=one.measured,
            sentence=one.sentence,
        )
        for one in beside_now(job=job)
    ]


def _checkout(job: Job) -> CheckoutOut | None:
    row = job.checkout
    if row is None:
        return None
    return CheckoutOut(
        url=row.url, ref=row.ref or None, state=row.state, commit=row.commit or None, notes=row.notes
    )


def _array(job: Job) -> ArrayOut | None:
    array, index = job.array, job.array_index
    if array is None or index is None:
        return None
    return ArrayOut(id=array.pk, index=index, count=array.count, at_most=array.at_most)


def show_attempt(attempt: Attempt) -> AttemptOut:
    return AttemptOut(
        number=attempt.number,
        state=attempt.state,
        devices=[_show_lease(lease) for lease in attempt.leases.all()],
        exit_kind=attempt.kind or None,
        exit_detail=attempt.exit_detail,
        ending=attempt.ending or None,
        ranks=attempt.ranks,
        first_failure=attempt.first_failure,
        log_tail=attempt.log_tail,
        sandbox_level=attempt.sandbox_level,
        sandbox=_sandbox(attempt),
        created_at=attempt.created_at,
        launched_at=attempt.launched_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        run_s=attempt.run_s,
        peak_memory_bytes=attempt.peak_memory_bytes,
        dropped_log_bytes=attempt.dropped_log_bytes,
        resumed_from_step=attempt.resumed_from_step,
        resumed_from=attempt.resumed_from,
        last_step=attempt.last_step,
        plan=_training_plan(attempt),
    )


def show_explanation(job: Job, *, now: datetime | None = None) -> ExplanationOut:
    """Why a job waits; for other jobs the sentence names their state."""
    now = now or timezone.now()
    waits = job.state in WAITING_STATES
    queued = job.state == JobState.QUEUED
    when = words.start_range(job.start_earliest, job.start_latest, now)
    code = (job.wait_code or NOT_SEEN) if queued else job.state if waits else ""
    return ExplanationOut(
        sentence=waiting.sentence(job, now, when) if queued else _state_sentence(job),
        reason=code,
        code=code,
        facts=job.wait_facts if queued else {},
        start_earliest=_still_ahead(job.start_earliest, now) if waits else None,
        start_latest=_still_ahead(job.start_latest, now) if waits else None,
        blocked_by=job.wait_blocked_by if waits else [],
        ahead=job.wait_ahead if waits else 0,
    )


def _still_ahead(expected: datetime | None, now: datetime) -> datetime | None:
    """The last pass's estimate; a time that has passed becomes now."""
    return None if expected is None else max(expected, now)


def show_event(event: JobEvent) -> EventOut:
    return EventOut(
        id=event.number,
        time=event.at,
        from_state=event.from_state or None,
        to=event.to_state,
        actor=event.actor,
        reason=event.reason,
        code=event.kind,
        facts=event.data,
    )


def show_checkpoint(
    checkpoint: Checkpoint, generation: Generation | None, address: str, *, by_name: bool
) -> CheckpointOut:
    """A checkpoint and the addresses of its files.

    Args:
        generation: its files on disk.
        by_name: a newer checkpoint has the same step, so the address needs this one's name.
    """
    named = f"{address}/{quote(checkpoint.name)}"
    files = generation.files[:MOST_CHECKPOINT_FILES] if generation else ()
    return CheckpointOut(
        path=checkpoints.called(generation),
        file_count=len(generation.files) if generation else 0,
        files=[
            CheckpointFileOut(
                path=file.path,
                size_bytes=file.size_bytes,
                download=f"{named}/files/{quote(file.path)}",
            )
            for file in files
        ],
        name=checkpoint.name,
        step=checkpoint.step,
        attempt=checkpoint.attempt_number,
        source=checkpoint.source,
        size_bytes=checkpoint.size_bytes,
        created_at=checkpoint.created_at,
        download=named if by_name or checkpoint.step is None else f"{address}/{checkpoint.step}",
    )


def finite_values(values: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Split metric values into those that JSON can hold, and names (nan, inf, -inf) for the others."""
    finite: dict[str, float | None] = {}
    nonfinite: dict[str, str] = {}
    for name, value in values.items():
        number = float(value) if isinstance(value, int | float | str) else math.nan
        if math.isfinite(number):
            finite[name] = value if isinstance(value, int | float) else number
        else:
            finite[name] = None
            nonfinite[name] = "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
    return finite, nonfinite


def show_change(change: Change) -> ChangeOut:
    return ChangeOut(change=change.change, value=change.value, stops=change.stops)


def show_calibration() -> CalibrationOut | None:
    counts = passes.calibration()
    return None if counts is None else CalibrationOut(**counts)


def _training_plan(attempt: Attempt) -> TrainingPlanOut | None:
    plan = training_plans.show(attempt)
    return None if plan is None else TrainingPlanOut.model_validate(plan)


def _sandbox(attempt: Attempt) -> SandboxOut | None:
    sandbox = isolation.describe(attempt.sandbox_level, attempt.sandbox_walls)
    return None if sandbox is None else SandboxOut.model_validate(sandbox)


def _newest_attempt(job: Job) -> Attempt | None:
    if not job.attempt_count:
        return None
    loaded: list[Attempt] | None = getattr(job, "newest_attempt", None)
    if loaded is None:
        loaded = list(with_devices(Attempt.objects.filter(job=job, number=job.attempt_count)))
    return loaded[0] if loaded else None


def _run_s(job: Job, attempt: Attempt | None, now: datetime) -> float:
    """Seconds over all attempts, the current one included."""
    if attempt is None or attempt.state == AttemptState.ENDED or attempt.started_at is None:
        return job.seconds_run
    return job.seconds_run + max(0.0, (now - attempt.started_at).total_seconds())


def _progress(job: Job) -> ProgressOut:
    eta_s = None
    if job.state == JobState.RUNNING and job.steps_per_s and job.total_steps and job.step is not None:
        eta_s = max(0, job.total_steps - job.step) / job.steps_per_s
    return ProgressOut(
        step=job.step,
        total_steps=job.total_steps,
        unit=job.step_unit,
        fraction=job.progress,
        steps_per_s=job.steps_per_s,
        eta_s=eta_s,
    )


def _show_lease(lease: Lease) -> LeaseOut:
    return LeaseOut(
        id=lease.device_id,
        index=lease.device.index,
        label=lease.device.label,
        kind=lease.device.kind,
        rank=lease.rank,
        memory_bytes=lease.memory_bytes,
    )


def _links(job: Job) -> JobLinks:
    address = f"{reverse('api:api-root')}jobs/{job.pk}"
    return JobLinks(
        self=address,
        page=f"/jobs/{job.pk}",
        explain=f"{address}/explain",
        events=f"{address}/events",
        attempts=f"{address}/attempts",
        logs=f"{address}/logs",
        metrics=f"{address}/metrics",
        checkpoints=f"{address}/checkpoints",
        files=f"{address}/files",
        environment=f"{address}/environment",
    )


def _state_sentence(job: Job) -> str:
    match job.state:
        case JobState.HELD:
            return "Held: starts only after it is released."
        case JobState.BACKOFF:
            return job.reason or "Pauses before the next attempt."
        case _:
            return f"The job is {job.state.replace('_', ' ')}; it does not wait."
