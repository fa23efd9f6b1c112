"""What a pass leaves for the next: devices kept for a job, and when to look again."""

from datetime import UTC, datetime

from orchestrator.models import SchedulerTerm
from orchestrator.scheduler import core


def next_wake_at() -> datetime | None:
    """When a pass is due even if nothing happens."""
    return SchedulerTerm.objects.filter(pk=1).values_list("next_wake_at", flat=True).first()


def keep_plans(term: int, decisions: core.Decisions, now: datetime) -> None:
    """Keep reservations and the next wake-up, unless a newer pass has begun."""
    row = SchedulerTerm.objects.get(pk=1)
    since = {each["job"]: each["since"] for each in row.reservations}
    kept = [
        {
            "job": each.job_id,
            "devices": list(each.device_ids),
            "since": since.get(each.job_id, now.timestamp()),
            # Whole minutes, so that a pass does not write the row again for a few seconds.
            "open_until": None if each.open_until is None else each.open_until // 60 * 60,
        }
        for each in decisions.reserve
    ]
    wake = decisions.next_wake
    wake_at = None if wake is None else datetime.fromtimestamp(wake, UTC)
    if kept != row.reservations or wake_at != row.next_wake_at:
        SchedulerTerm.objects.filter(pk=1, term=term).update(reservations=kept, next_wake_at=wake_at)
