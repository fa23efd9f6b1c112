"""Devices that a pass keeps for a job until the next."""

from datetime import datetime

from orchestrator import scheduling
from orchestrator.models import SchedulerTerm


def keep_reservations(term: int, decisions: scheduling.Decisions, now: datetime) -> None:
    row = SchedulerTerm.objects.get(pk=1)
    since = {each["job"]: each["since"] for each in row.reservations}
    kept = [
        {
            "job": each.job_id,
            "devices": list(each.device_ids),
            "since": since.get(each.job_id, now.timestamp()),
        }
        for each in decisions.reserve
    ]
    if kept != row.reservations:
        SchedulerTerm.objects.filter(pk=1, term=term).update(reservations=kept)
