"""Runs that told of their steps and tell nothing any more."""

from datetime import datetime

from orchestrator.models import Job, JobState

PATIENCE_S = 600.0
PATIENCE_STEPS = 20  # of a run whose steps take minutes


def is_silent(job: Job, now: datetime) -> bool:
    """Whether it reported steps since it was last queued, and nothing for ten minutes or the time of 20 steps."""
    if job.state != JobState.RUNNING or job.step is None or job.last_report_at is None:
        return False
    if job.last_report_at < job.queued_at:  # by an earlier attempt
        return False
    steps_s = PATIENCE_STEPS / job.steps_per_s if job.steps_per_s else 0.0
    return (now - job.last_report_at).total_seconds() > max(PATIENCE_S, steps_s)
