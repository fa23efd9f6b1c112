"""What stopping a job and starting it again costs, seen from its own attempts."""

from datetime import datetime, timedelta

from django.utils import timezone

from orchestrator.models import Attempt, Checkpoint, Job, StopReason

QUIET = timedelta(seconds=1)  # a script that saves several files closes them soon after each other


def note_first_step(attempt: Attempt, step: int, now: datetime) -> None:
    """An attempt has reported its first step: from its devices to here is what a restart costs."""
    cost_s = max(0.0, (now - attempt.created_at).total_seconds())
    Attempt.objects.filter(pk=attempt.pk, first_step=None).update(first_step=step, first_step_at=now)
    Job.objects.filter(pk=attempt.job_id).update(restart_cost_s=cost_s)
    if _went_on(attempt, step):
        note_resumed(attempt)


def note_resumed(attempt: Attempt) -> None:
    """The job has gone on where an earlier attempt had saved: it may be stopped for others from now on."""
    Job.objects.filter(pk=attempt.job_id).update(seen_to_resume=True)


def _went_on(attempt: Attempt, step: int) -> bool:
    """Whether it began behind its checkpoint, and further than the job's very first report.

    A script that does not resume, and reports each hundredth step, begins with step 100 each time.
    """
    given = Attempt.objects.values_list("resumed_from_step", flat=True).get(pk=attempt.pk)
    first = (
        Attempt.objects.filter(job_id=attempt.job_id, number=1).values_list("first_step", flat=True).first()
    )
    return given is not None and first is not None and step >= given and step > first


def saved_for_stop(attempt: Attempt) -> bool:
    """Whether a job that is preempted has kept a checkpoint since it was asked to make room."""
    job = attempt.job
    if job.stop_reason != StopReason.PREEMPT or job.stop_wanted_at is None:
        return False
    kept = Checkpoint.objects.filter(job_id=job.pk, attempt_number=attempt.number)
    newest = kept.order_by("-created_at").values_list("created_at", flat=True).first()
    return newest is not None and job.stop_wanted_at < newest <= timezone.now() - QUIET
