"""Events, errands, kept answers and waits: I1, I8, I12, I14, I15, I19."""

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
from orchestrator.server.doctor.finding import Finding

UNSAID_AFTER = timedelta(seconds=10)
UNDONE_AFTER = timedelta(minutes=1)


def check_events() -> Iterator[Finding]:
    """The history of every job is complete and ends in its state (I8, I19)."""
    jobs = {job.pk: job for job in Job.objects.only("name", "state", "event_count")}
    rows = JobEvent.objects.order_by("job_id", "number").values_list(
        "job_id", "number", "from_state", "to_state"
    )
    told = set()
    for job_id, events in groupby(rows.iterator(), key=lambda row: row[0]):
        job = jobs.get(job_id)
        if job is None:
            continue
        told.add(job_id)
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
    for job_id in jobs.keys() - told:
        yield Finding("I8", f"{jobs[job_id]} has no history.")


def check_errands() -> Iterator[Finding]:
    """What must be launched is there to be launched (I12)."""
    live = Attempt.objects.live().filter(job=OuterRef("job"), number=OuterRef("number"))
    void = Outbox.objects.open().filter(errand=Errand.LAUNCH).exclude(Exists(live)).select_related("job")
    for errand in void:
        yield Finding(
            "I12",
            f"A launch of {errand.job}, attempt {errand.number}, is still asked for, but that attempt has ended.",
            "strike it out",
            partial(_strike_out, errand.pk),
        )
    late = Outbox.objects.open().filter(created_at__lt=timezone.now() - UNDONE_AFTER)
    if late.exists():
        yield Finding("I12", "Errands wait for longer than a minute; neither a worker nor the agent runs.")


def _strike_out(errand_id: int) -> None:
    Outbox.objects.filter(pk=errand_id).update(done_at=timezone.now())


def check_keys() -> Iterator[Finding]:
    """Every submit that was acknowledged is there (I1); the kept answers name its job."""
    answers = {
        key.pk: str(key.answer.get("id", "")) for key in IdempotencyKey.objects.filter(endpoint="jobs")
    }
    known = {str(pk) for pk in Job.objects.filter(pk__in=set(answers.values())).values_list("pk", flat=True)}
    for key_id, job_id in answers.items():
        if job_id not in known:
            yield Finding(
                "I1",
                f"Job {job_id} was acknowledged, but is not in the database.",
                "forget the answer, so that the same request submits it again",
                partial(_forget, key_id),
            )


def _forget(key_id: int) -> None:
    IdempotencyKey.objects.filter(pk=key_id).delete()


def check_waits() -> Iterator[Finding]:
    """Whoever waits knows why, and somebody will act (I14, I15)."""
    queued = Job.objects.queued().filter(wait_sentence="", queued_at__lt=timezone.now() - UNSAID_AFTER)
    for job in queued:
        yield Finding(
            "I14",
            f"{job} waits, and nothing says why.",
            "ask for a scheduling pass",
            partial(_ask_for_pass, job.pk),
        )
    for job in Job.objects.filter(state=JobState.BACKOFF, next_try_at=None):
        yield Finding(
            "I15",
            f"{job} waits for its next try, but has no time for it.",
            "let it try now",
            partial(_try_now, job.pk),
        )


def _ask_for_pass(job_id: UUID) -> None:
    lifecycle.queue_errand(Job.objects.get(pk=job_id), Errand.SCHEDULE)


def _try_now(job_id: UUID) -> None:
    Job.objects.filter(pk=job_id, state=JobState.BACKOFF, next_try_at=None).update(next_try_at=timezone.now())
