"""Which devices the calendar keeps at this moment, for whoever counts what devices are given to."""

from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.models import LEASED_STATES
from orchestrator.placement.calendar import bookings
from orchestrator.placement.passes import POLICY
from orchestrator.placement.relevant import relevant_jobs
from orchestrator.placement.snapshot import snapshot
from orchestrator.scheduling.bookings import booked_devices


@dataclass(frozen=True, slots=True)
class Booked:
    """Ids of devices."""

    for_people: frozenset[str] = frozenset()
    for_maintenance: frozenset[str] = frozenset()


def booked_now(now: datetime) -> Booked:
    """The devices of the reservations and the maintenance that are on; those booked by number as passes choose them."""
    current = [each for each in bookings(now) if each.start <= now.timestamp()]
    if not current:
        return Booked()
    if all(each.count is None for each in current):
        devices = {each.id: frozenset(each.device_ids) for each in current}
    else:
        holding = {str(job.pk): job for job in relevant_jobs(LEASED_STATES)}
        devices = dict(booked_devices(replace(snapshot(now, holding), queued=()), POLICY))
    none = frozenset[str]()
    return Booked(
        for_people=none.union(*(devices[each.id] for each in current if each.owners)),
        for_maintenance=none.union(*(devices[each.id] for each in current if not each.owners)),
    )
