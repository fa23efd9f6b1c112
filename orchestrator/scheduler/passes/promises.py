"""The start ranges that waiting jobs were told, and whether they held."""

from datetime import datetime, timedelta

from django.db.models import Q

from orchestrator.models import Job, JobState, StartPromise

KEPT = 2000  # rows; the newest ones tell how good the ranges are
COUNTED = 400
_SLACK = timedelta(seconds=1)


def promise(
    job: Job, earliest: datetime | None, latest: datetime | None, *, foreseen_s: float | None, now: datetime
) -> StartPromise | None:
    """The row for a range that a job is told; None where there is no range."""
    if earliest is None or latest is None:
        return None
    return StartPromise(job=job, made_at=now, earliest=earliest, latest=latest, foreseen_s=foreseen_s)


def check_promise(job: Job, now: datetime) -> None:
    """A job starts: note whether the range it was told first has held."""
    StartPromise.objects.open().filter(job=job).update(
        started_at=now, held=Q(earliest__lte=now + _SLACK, latest__gte=now - _SLACK)
    )


def drop_void_promises() -> None:
    """Forget ranges of jobs that do not wait any more, and the oldest of the others."""
    StartPromise.objects.open().exclude(job__state=JobState.QUEUED).delete()
    oldest = StartPromise.objects.values_list("pk", flat=True)[KEPT : KEPT + 1].first()
    if oldest is not None:
        StartPromise.objects.filter(pk__lte=oldest).delete()


def calibration() -> dict[str, int] | None:
    """How many of the last ranges have held; None before any was checked."""
    held = list(StartPromise.objects.kept_or_broken().values_list("held", flat=True)[:COUNTED])
    return {"inside": sum(map(bool, held)), "of": len(held)} if held else None
