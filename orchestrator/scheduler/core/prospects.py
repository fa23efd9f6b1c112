"""When waiting jobs may start if the queue is served in its order.

A list schedule over the expected ends of jobs.  It plans whole devices only and ignores backfilling.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.scheduler.core.backfill import BackfillSlot
from orchestrator.scheduler.core.ends import End, end_of
from orchestrator.scheduler.core.room import NOWHERE, Room, allows, at_another_time
from orchestrator.scheduler.core.types import (
    Device,
    Job,
    Policy,
    QueuedJob,
)


@dataclass(frozen=True, slots=True)
class Prospect:
    """When a waiting job may start and who holds its devices until then; None: unknown."""

    earliest: float | None
    latest: float | None
    blocked_by: tuple[Job, ...]  # running jobs
    unknown: Job | None = None  # the job whose unknown end makes this start unknown
    foreseen_s: float | None = None  # the expected wait behind the range; None: not made from expected work


@dataclass(slots=True)
class _Occupancy:
    """Until when a device is taken, and by which running jobs."""

    earliest: float
    latest: float | None
    by: tuple[Job, ...]
    unknown: Job | None


def foresee(
    room: Room,
    waiting: Iterable[Job],
    head: BackfillSlot | None,
    ends: Mapping[str, End],
    now: float,
    policy: Policy,
) -> dict[str, Prospect]:
    """Prospects of the given jobs, the head (which has the slot) first; jobs without a prospect are left out."""
    occupied = {id_: _occupancy(room, id_, ends, now) for id_ in room.usable}
    prospects: dict[str, Prospect] = {}
    for number, job in enumerate(waiting):
        if number == 0 and head is not None:
            chosen = list(head.device_ids)
            unknown = next((held for held in head.blocked_by if ends[held.id].latest is None), None)
            prospect = Prospect(head.earliest, head.latest, head.blocked_by, unknown)
        elif job.memory_bytes is not None:
            continue  # a share of a device: its neighbours are unknown
        else:
            chosen = _first_free(room, job, occupied)
            if not chosen:
                continue
            prospect = _prospect([occupied[id_] for id_ in chosen])
        prospects[job.id] = _without_half_range(prospect)
        _occupy(occupied, chosen, job, prospect, now, policy)
    return prospects


def _without_half_range(prospect: Prospect) -> Prospect:
    """Drop the earliest start where there is no latest one: half a range tells nothing."""
    if prospect.latest is None:
        return Prospect(None, None, prospect.blocked_by, prospect.unknown)
    return prospect


def _occupancy(room: Room, device_id: str, ends: Mapping[str, End], now: float) -> _Occupancy:
    tenants = room.tenants.get(device_id, ())
    tenant_ends = [ends[tenant.job.id] for tenant in tenants]
    latest: float | None = now
    for end in tenant_ends:
        latest = None if latest is None or end.latest is None else max(latest, end.latest)
    earliest = max((end.earliest for end in tenant_ends), default=now)
    unknown = next((tenant.job for tenant in tenants if ends[tenant.job.id].latest is None), None)
    return _Occupancy(earliest, latest, tuple(tenant.job for tenant in tenants), unknown)


def _first_free(room: Room, job: Job, occupied: Mapping[str, _Occupancy]) -> list[str]:
    def rank(device: Device) -> tuple[bool, float, float, int, str]:
        occupancy = occupied[device.id]
        return (
            occupancy.latest is None,
            occupancy.latest or 0.0,
            occupancy.earliest,
            device.index,
            device.id,
        )

    by_node: dict[str, list[Device]] = defaultdict(list)
    for device in room.usable.values():
        if allows(job.constraints, device) and room.calm(device):
            by_node[device.node].append(device)
    choices = [sorted(free, key=rank)[: job.gpus] for free in by_node.values() if len(free) >= job.gpus]
    best = min(choices, key=lambda choice: (rank(choice[-1]), choice[-1].node), default=[])
    return [device.id for device in best]


def _prospect(devices: list[_Occupancy]) -> Prospect:
    latest: float | None = devices[0].latest
    for device in devices:
        latest = None if latest is None or device.latest is None else max(latest, device.latest)
    blocking = {job.id: job for device in devices for job in device.by}
    earliest = max(device.earliest for device in devices)
    unknown = next((device.unknown for device in devices if device.unknown), None)
    return Prospect(earliest, latest, tuple(blocking[id_] for id_ in sorted(blocking)), unknown)


def _occupy(
    occupied: dict[str, _Occupancy], chosen: list[str], job: Job, start: Prospect, now: float, policy: Policy
) -> None:
    run = end_of(job, now, policy)  # only the length of the run counts here; it is moved to the start
    earliest = (start.earliest or now) + run.earliest - now
    latest = None if start.latest is None or run.latest is None else start.latest + run.latest - now
    unknown = start.unknown or (job if run.latest is None else None)
    for id_ in chosen:
        occupied[id_] = _Occupancy(earliest, latest, (), unknown)


def after_bookings(
    room: Room, waiting: Iterable[QueuedJob], now: float, policy: Policy
) -> dict[str, Prospect]:
    """Prospects of the jobs that wait for bookings to end, where enough devices will surely be free by then.

    Args:
        waiting: jobs kept from devices by bookings, in the order in which they are served.
    """
    prospects: dict[str, Prospect] = {}
    taken: set[str] = set()
    for job in list(waiting)[: policy.predicted_jobs]:
        booking_ends = [booking.until for booking in job.kept_away_by if booking.until is not None]
        if len(booking_ends) < len(job.kept_away_by):
            continue
        chosen = _free_by(room, job, max(booking_ends), now, policy, taken)
        if chosen:
            taken.update(chosen)
            prospects[job.id] = Prospect(min(booking_ends), max(booking_ends), ())
    return prospects


def _free_by(
    room: Room, job: QueuedJob, moment: float, now: float, policy: Policy, taken: set[str]
) -> list[str]:
    """Devices of one node that will have no tenants at that moment; empty if there are too few."""
    by_node: dict[str, list[str]] = {}
    where, need = at_another_time(job.constraints), job.memory_bytes or 0
    for device in room.usable.values():
        capacity = room.capacity_bytes(device, whole=job.memory_bytes is None)
        if device.id in taken or not allows(where, device) or capacity == NOWHERE or capacity < need:
            continue
        if _is_empty_by(room, device, moment, now, policy):
            by_node.setdefault(device.node, []).append(device.id)
    enough = sorted((node, ids) for node, ids in by_node.items() if len(ids) >= job.gpus)
    return enough[0][1][: job.gpus] if enough else []


def _is_empty_by(room: Room, device: Device, moment: float, now: float, policy: Policy) -> bool:
    ends = [end_of(tenant.job, now, policy).latest for tenant in room.tenants.get(device.id, ())]
    return all(end is not None and end <= moment for end in ends)
