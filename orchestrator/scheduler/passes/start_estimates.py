"""The start estimates given to waiting jobs, and whether they held."""

from datetime import datetime, timedelta

from django.db.models import Q

from orchestrator.models import Job, JobState, StartPromise

MOST_ROWS = 2000  # the newest rows show how good the estimates are
COUNTED = 400
_SLACK = timedelta(seconds=1)


def new_estimate(
    job: Job, earliest: datetime | None, latest: datetime | None, *, foreseen_s: float | None, now: datetime
) -> StartPromise | None:
    """Build the row for a job's start estimate; None without a range."""
    if earliest is None or latest is None:
        return None
    return StartPromise(job=job, made_at=now, earliest=earliest, latest=latest, foreseen_s=foreseen_s)


def check_estimate(job: Job, now: datetime) -> None:
    """A job starts: record whether its first start estimate held."""
    StartPromise.objects.open().filter(job=job).update(
        started_at=now, held=Q(earliest__lte=now + _SLACK, latest__gte=now - _SLACK)
    )


def drop_void_estimates() -> None:
    """Delete the estimates of jobs that no longer wait, and the oldest of the others."""
    StartPromise.objects.open().exclude(job__state=JobState.QUEUED).delete()
    oldest = StartPromise.objects.values_list("pk", flat=True)[MOST_ROWS : MOST_ROWS + 1].first()
    if oldest is not None:
        StartPromise.objects.filter(pk__lte=oldest).delete()


def calibration() -> dict[str, int] | None:
    """How many of the last estimates held; None before any was checked."""
    held = list(StartPromise.objects.kept_or_broken().values_list("held", flat=True)[:COUNTED])
    return {"inside": sum(map(bool, held)), "of": len(held)} if held else None
