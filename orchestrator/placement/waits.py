"""Why each waiting job waits, kept in its row for everybody who looks."""

from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from orchestrator import lifecycle, scheduling, wakeups
from orchestrator.lifecycle import IllegalTransition, StaleJob
from orchestrator.models import Job, JobState

ROWS_A_TRANSACTION = 200  # a long queue must not keep others from writing for seconds


def write_waits(decisions: scheduling.Decisions, jobs: dict[str, Job]) -> None:
    """Keep each waiting job's sentence; only what changed is written."""
    changed = []
    for wait in decisions.wait:
        job = jobs[wait.job_id]
        if wait.code == scheduling.WaitCode.IMPOSSIBLE and fail(job, wait.sentence):
            continue
        columns: dict[str, Any] = {
            "wait_code": wait.code,
            "wait_sentence": wait.sentence[:500],
            "wait_blocked_by": list(wait.blocked_by),
            "wait_ahead": wait.position - 1,
            "start_earliest": _moment(wait.start_earliest),
            "start_latest": _moment(wait.start_latest),
        }
        if any(getattr(job, name) != value for name, value in columns.items()):
            changed.append((job.pk, columns))
    for begin in range(0, len(changed), ROWS_A_TRANSACTION):
        with transaction.atomic():
            for pk, columns in changed[begin : begin + ROWS_A_TRANSACTION]:
                Job.objects.filter(pk=pk, state=JobState.QUEUED).update(**columns)
                wakeups.publish(f"job:{pk}")
            wakeups.publish("queue")


def fail(job: Job, sentence: str) -> bool:
    try:
        lifecycle.fail_waiting(job, reason=sentence)
    except (StaleJob, IllegalTransition):
        return False
    return True


def _moment(at_s: float | None) -> datetime | None:
    """A predicted time in whole minutes, so that a sweep does not rewrite every row for a few seconds."""
    return None if at_s is None else datetime.fromtimestamp(at_s // 60 * 60, UTC)
