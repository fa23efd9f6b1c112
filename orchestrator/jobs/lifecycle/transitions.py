"""Which steps there are, and the one function that takes them: state and event in one transaction.

The table is section 4.2 of docs/reliability.md; S numbers refer to it.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from orchestrator.exceptions import Conflict, Sentence
from orchestrator.facts.record import NOTHING, Fact
from orchestrator.live import wakeups
from orchestrator.models import Errand, Job, JobEvent, JobState, Outbox
from orchestrator.models.jobs import Columns
from orchestrator.models.transactions import again_when_undone

NEXT_STATES: Mapping[str, frozenset[str]] = {
    JobState.QUEUED: frozenset({JobState.HELD, JobState.STARTING, JobState.CANCELLED, JobState.FAILED}),
    JobState.HELD: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.FAILED}),
    JobState.STARTING: frozenset(
        {
            JobState.RUNNING,
            JobState.QUEUED,
            JobState.STOPPING,
            JobState.SUCCEEDED,
            JobState.BACKOFF,
            JobState.FAILED,
            JobState.UNKNOWN,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.STOPPING, JobState.SUCCEEDED, JobState.BACKOFF, JobState.FAILED, JobState.UNKNOWN}
    ),
    JobState.STOPPING: frozenset(
        {
            JobState.SUCCEEDED,
            JobState.CANCELLED,
            JobState.TIMED_OUT,
            JobState.QUEUED,
            JobState.BACKOFF,
            JobState.FAILED,
            JobState.UNKNOWN,
        }
    ),
    JobState.BACKOFF: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.FAILED}),
    JobState.UNKNOWN: frozenset(
        {
            JobState.RUNNING,
            JobState.STOPPING,
            JobState.SUCCEEDED,
            JobState.BACKOFF,
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.TIMED_OUT,
            JobState.QUEUED,
        }
    ),
}


class IllegalTransition(Conflict):
    """The lifecycle has no such step from the job's present state."""

    code = "illegal_transition"


class StaleJob(Conflict):
    """Another process moved the job first."""

    code = "stale_job"


def move(
    job: Job, to: JobState, *, actor: str, why: Fact = NOTHING, now: datetime | None = None, **changes: Any
) -> None:
    """Move a job out of the state it was read in, and write the event.

    Args:
        why: what brought it there.
        changes: further columns to set with it.

    Raises:
        IllegalTransition: the lifecycle has no such step.
        StaleJob: another process moved the job first.
    """
    if to not in NEXT_STATES.get(job.state, frozenset()):
        raise IllegalTransition(
            Sentence("The job is {state}, so it cannot become {to}.", state=job.state, to=to)
        )
    now = now or timezone.now()
    changes |= _times_of(job, to, now)
    with transaction.atomic():
        moved = Job.objects.filter(pk=job.pk, state=job.state, version=job.version).update(
            state=to,
            version=job.version + 1,
            event_count=F("event_count") + 1,
            why=why.as_json(),
            **changes,
        )
        if not moved:
            raise StaleJob(f"The job is no longer {job.state}; look again.")
        _write_event(job, job.state, to, what=why, actor=actor, at=now)
        announce(job)
    job.state, job.why = to, why.as_json()
    job.version += 1
    for name, value in changes.items():
        setattr(job, name, value)


def _write_event(
    job: Job, from_state: str, to_state: str, *, what: Fact, actor: str, at: datetime | None
) -> None:
    """Append to a job's history, inside the caller's transaction, which has counted this event in the row.

    The number comes from there: remarks of others raise it without making anybody's view of the job stale.
    """
    job.event_count = Job.objects.values_list("event_count", flat=True).get(pk=job.pk)
    JobEvent.objects.create(
        job=job,
        number=job.event_count,
        at=at or timezone.now(),
        from_state=from_state,
        to_state=to_state,
        actor=actor[:160],
        kind=what.code,
        data=dict(what.facts),
    )


def _times_of(job: Job, to: JobState, now: datetime) -> Columns:
    """The columns that follow from the state alone."""
    if to == JobState.QUEUED:
        return {
            "queued_at": now,
            "next_try_at": None,
            "idle_since": None,
            "wait_code": "",
            "wait_facts": {},
        }
    if to == JobState.RUNNING:
        return {"first_started_at": job.first_started_at or now}
    if to in NEXT_STATES:
        return {}
    return {"ended_at": now, "stop_wanted": False, "next_try_at": None, "idle_since": None}


def remark(job: Job, what: Fact, *, actor: str, now: datetime | None = None) -> None:
    """Write something into a job's history that changes no state."""
    with transaction.atomic():
        state = Job.objects.select_for_update().values_list("state", flat=True).get(pk=job.pk)
        Job.objects.filter(pk=job.pk).update(event_count=F("event_count") + 1)
        _write_event(job, state, state, what=what, actor=actor, at=now)
        announce(job)


def announce(job: Job) -> None:
    """Wake the views that show this job, after the commit."""
    wakeups.publish(f"job:{job.pk}")
    wakeups.publish("jobs")
    wakeups.publish("queue")


def queue_errand(job: Job, errand: Errand, *, number: int = 0, now: datetime | None = None) -> None:
    """Write a message to the outbox beside the fact that calls for it, and send it after the commit."""
    Outbox.objects.create(errand=errand, job=job, number=number, created_at=now or timezone.now())
    if errand == Errand.LAUNCH:
        wakeups.launch(job.pk, number)
    else:
        wakeups.schedule(for_errands=True)


def retry_when_stale(job: Job, act: Callable[[Job], None]) -> Job:
    """Run ``act`` on a fresh row until no other process comes in between; each round somebody got on."""

    @again_when_undone
    def try_once() -> None:
        job.refresh_from_db()
        with transaction.atomic():
            act(job)

    while True:
        try:
            try_once()
        except StaleJob:
            continue
        return job
