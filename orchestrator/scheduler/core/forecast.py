"""When the jobs behind the head may start, if the queue is served in its order.

A list schedule over the predicted ends: it knows whole devices only, and does not know that a
job may be filled in earlier.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.scheduler.core.estimate import End, end_of
from orchestrator.scheduler.core.reservation import Slot
from orchestrator.scheduler.core.room import Room, allows
from orchestrator.scheduler.core.types import Device, Job, Policy


@dataclass(frozen=True, slots=True)
class Prospect:
    """When a waiting job may start and who holds its devices until then; None: not known."""

    earliest: float | None
    latest: float | None
    blocked_by: tuple[Job, ...]  # running jobs
    unknown: Job | None = None  # whose end is not known, so that the start is not either
    foreseen_s: float | None = None  # the wait that the range was made of; None: not by estimating work


@dataclass(slots=True)
class _Booking:
    """Until when a device is taken, and by which running jobs."""

    earliest: float
    latest: float | None
    by: tuple[Job, ...]
    unknown: Job | None


def foresee(
    room: Room, waiting: Iterable[Job], head: Slot | None, ends: Mapping[str, End], now: float, policy: Policy
) -> dict[str, Prospect]:
    """Prospects of the given jobs, the head (which has the slot) first; jobs without one are left out."""
    bookings = {id_: _booking(room, id_, ends, now) for id_ in room.usable}
    prospects: dict[str, Prospect] = {}
    for number, job in enumerate(waiting):
        if number == 0 and head is not None:
            chosen = list(head.device_ids)
            unknown = next((held for held in head.blocked_by if ends[held.id].latest is None), None)
            prospect = Prospect(head.earliest, head.latest, head.blocked_by, unknown)
        elif job.memory_bytes is not None:
            continue  # a share of a device: nobody knows beside whom
        else:
            chosen = _first_free(room, job, bookings)
            if not chosen:
                continue
            prospect = _prospect([bookings[id_] for id_ in chosen])
        prospects[job.id] = _honest(prospect)
        _book(bookings, chosen, job, prospect, now, policy)
    return prospects


def _honest(prospect: Prospect) -> Prospect:
    """Without a latest start there is no range: then the earliest says nothing either."""
    if prospect.latest is None:
        return Prospect(None, None, prospect.blocked_by, prospect.unknown)
    return prospect


def _booking(room: Room, device_id: str, ends: Mapping[str, End], now: float) -> _Booking:
    tenants = room.tenants.get(device_id, ())
    found = [ends[tenant.job.id] for tenant in tenants]
    latest: float | None = now
    for end in found:
        latest = None if latest is None or end.latest is None else max(latest, end.latest)
    earliest = max((end.earliest for end in found), default=now)
    unknown = next((tenant.job for tenant in tenants if ends[tenant.job.id].latest is None), None)
    return _Booking(earliest, latest, tuple(tenant.job for tenant in tenants), unknown)


def _first_free(room: Room, job: Job, bookings: Mapping[str, _Booking]) -> list[str]:
    def rank(device: Device) -> tuple[bool, float, float, int, str]:
        booking = bookings[device.id]
        return (booking.latest is None, booking.latest or 0.0, booking.earliest, device.index, device.id)

    by_node: dict[str, list[Device]] = defaultdict(list)
    for device in room.usable.values():
        if allows(job.constraints, device) and room.calm(device):
            by_node[device.node].append(device)
    choices = [sorted(found, key=rank)[: job.gpus] for found in by_node.values() if len(found) >= job.gpus]
    best = min(choices, key=lambda choice: (rank(choice[-1]), choice[-1].node), default=[])
    return [device.id for device in best]


def _prospect(bookings: list[_Booking]) -> Prospect:
    latest: float | None = bookings[0].latest
    for booking in bookings:
        latest = None if latest is None or booking.latest is None else max(latest, booking.latest)
    blocking = {job.id: job for booking in bookings for job in booking.by}
    earliest = max(booking.earliest for booking in bookings)
    unknown = next((booking.unknown for booking in bookings if booking.unknown), None)
    return Prospect(earliest, latest, tuple(blocking[id_] for id_ in sorted(blocking)), unknown)


def _book(
    bookings: dict[str, _Booking], chosen: list[str], job: Job, start: Prospect, now: float, policy: Policy
) -> None:
    run = end_of(job, now, policy)  # only its length counts: it is moved to the start
    earliest = (start.earliest or now) + run.earliest - now
    latest = None if start.latest is None or run.latest is None else start.latest + run.latest - now
    unknown = start.unknown or (job if run.latest is None else None)
    for id_ in chosen:
        bookings[id_] = _Booking(earliest, latest, (), unknown)
