"""Events, the outbox, stored answers and waiting jobs."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import groupby
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.utils import timezone

from orchestrator.jobs import lifecycle
from orchestrator.models import (
    Attempt,
    Errand,
    IdempotencyKey,
    Job,
    JobEvent,
    JobState,
    Outbox,
)
from orchestrator.server.doctor.findings import Finding

NO_REASON_AFTER = timedelta(seconds=10)
UNHANDLED_AFTER = timedelta(minutes=1)


def check_events() -> Iterator[Finding]:
    """The history of every job is complete and ends in the job's state."""
    jobs = {job.pk: job for job in Job.objects.only("name", "state", "event_count")}
    rows = JobEvent.objects.order_by("job_id", "number").values_list(
        "job_id", "number", "from_state", "to_state"
    )
    with_history = set()
    for job_id, events in groupby(rows.iterator(), key=lambda row: row[0]):
        job = jobs.get(job_id)
        if job is None:
            continue
        with_history.add(job_id)
        state, count, broken = "", 0, ""
        for _, number, from_state, to_state in events:
            count += 1
            if number != count or (from_state != state and not broken):
                broken = broken or f"entry {number}"
            state = to_state
        if broken or count != job.event_count:
            yield Finding("I19", f"The history of {job} has a gap{f' at {broken}' if broken else ''}.")
        elif state != job.state:
            yield Finding("I8", f"The history of {job} ends in {state}, but the job is {job.state}.")
    for job_id in jobs.keys() - with_history:
        yield Finding("I8", f"{jobs[job_id]} has no history.")


def check_errands() -> Iterator[Finding]:
    """The outbox has no launch of an ended attempt, and is handled in time."""
    live = Attempt.objects.live().filter(job=OuterRef("job"), number=OuterRef("number"))
    obsolete = Outbox.objects.open().filter(errand=Errand.LAUNCH).exclude(Exists(live)).select_related("job")
    for row in obsolete:
        yield Finding(
            "I12",
            f"The outbox still has the launch of {row.job}, attempt {row.number}, but that attempt has ended.",
            "mark it as done",
            partial(_mark_done, row.pk),
        )
    late = Outbox.objects.open().filter(created_at__lt=timezone.now() - UNHANDLED_AFTER)
    if late.exists():
        yield Finding(
            "I12", "The outbox has not been handled for over a minute: neither worker nor agent is running."
        )


def _mark_done(row_id: int) -> None:
    Outbox.objects.filter(pk=row_id).update(done_at=timezone.now())


def check_keys() -> Iterator[Finding]:
    """Every acknowledged submit has its job; stored answers name it."""
    answers = {
        key.pk: str(key.answer.get("id", "")) for key in IdempotencyKey.objects.filter(endpoint="jobs")
    }
    known = {str(pk) for pk in Job.objects.filter(pk__in=set(answers.values())).values_list("pk", flat=True)}
    for key_id, job_id in answers.items():
        if job_id not in known:
            yield Finding(
                "I1",
                f"Job {job_id} was acknowledged, but is missing from the database.",
                "delete the stored answer, so that the same request submits it again",
                partial(_forget, key_id),
            )


def _forget(key_id: int) -> None:
    IdempotencyKey.objects.filter(pk=key_id).delete()


def check_waits() -> Iterator[Finding]:
    """Every waiting job has a reason, and every paused job a time for its next attempt."""
    queued = Job.objects.queued().filter(wait_code="", queued_at__lt=timezone.now() - NO_REASON_AFTER)
    for job in queued:
        yield Finding(
            "I14",
            f"{job} waits without a reason.",
            "request a scheduling pass",
            partial(_request_pass, job.pk),
        )
    for job in Job.objects.filter(state=JobState.BACKOFF, next_try_at=None):
        yield Finding(
            "I15",
            f"{job} waits for its next attempt, but has no time for it.",
            "start the next attempt now",
            partial(_retry_now, job.pk),
        )


def _request_pass(job_id: UUID) -> None:
    lifecycle.queue_errand(Job.objects.get(pk=job_id), Errand.SCHEDULE)


def _retry_now(job_id: UUID) -> None:
    Job.objects.filter(pk=job_id, state=JobState.BACKOFF, next_try_at=None).update(next_try_at=timezone.now())
