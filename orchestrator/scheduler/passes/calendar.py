"""Reservations and maintenance that are on or come next, for the scheduler."""

from datetime import datetime

from orchestrator.models import Booking, BookingKind
from orchestrator.scheduler import core


def bookings(now: datetime) -> tuple[core.Booking, ...]:
    rows = Booking.objects.not_over(now).prefetch_related("devices", "people")
    found = [(row, row.occurrence(now)) for row in rows]
    return tuple(
        core.Booking(
            id=str(row.pk),
            name=row.name,
            pool=row.pool_id,
            start=when[0].timestamp(),
            until=None if when[1] is None else when[1].timestamp(),
            count=row.count,
            device_ids=tuple(sorted(device.pk for device in row.devices.all())),
            owners=tuple(sorted(person.get_username() for person in row.people.all()))
            if row.kind == BookingKind.RESERVATION
            else (),
        )
        for row, when in found
        if when is not None
    )
