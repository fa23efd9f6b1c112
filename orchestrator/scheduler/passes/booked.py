"""Which devices the calendar keeps, for pages and for the ledger of what devices are given to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.models import LEASED_STATES
from orchestrator.scheduler import core
from orchestrator.scheduler.core.bookings import booked_devices
from orchestrator.scheduler.passes.calendar import bookings
from orchestrator.scheduler.passes.passes import POLICY
from orchestrator.scheduler.passes.relevant import relevant_jobs
from orchestrator.scheduler.passes.snapshot import snapshot


@dataclass(frozen=True, slots=True)
class Booked:
    """Ids of devices."""

    for_people: frozenset[str] = frozenset()
    for_maintenance: frozenset[str] = frozenset()


def booked_now(now: datetime) -> Booked:
    """The devices of the reservations and the maintenance that are on; those booked by number as passes choose them."""
    current = [each for each in bookings(now) if each.start <= now.timestamp()]
    devices = devices_of(current, now)
    none = frozenset[str]()
    return Booked(
        for_people=none.union(*(devices[each.id] for each in current if each.owners)),
        for_maintenance=none.union(*(devices[each.id] for each in current if not each.owners)),
    )


def devices_of(wanted: Sequence[core.Booking], now: datetime) -> Mapping[str, frozenset[str]]:
    """The devices of each booking, by its id; looks at the jobs only where one is booked by number."""
    if all(each.count is None for each in wanted):
        return {each.id: frozenset(each.device_ids) for each in wanted}
    holding = {str(job.pk): job for job in relevant_jobs(LEASED_STATES)}
    return booked_devices(replace(snapshot(now, holding), queued=()), POLICY)
