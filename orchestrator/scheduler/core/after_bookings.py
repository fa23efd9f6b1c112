"""When jobs may start from which the calendar keeps what they could use: when it gives that back."""

from collections.abc import Iterable

from orchestrator.scheduler.core.estimate import end_of
from orchestrator.scheduler.core.forecast import Prospect
from orchestrator.scheduler.core.room import NOWHERE, Room, allows, at_another_time
from orchestrator.scheduler.core.types import Device, Policy, QueuedJob


def after_bookings(
    room: Room, waiting: Iterable[QueuedJob], now: float, policy: Policy
) -> dict[str, Prospect]:
    """Prospects of those whose devices are surely free by then; the others' are not known.

    Args:
        waiting: jobs that wait for the calendar, in the order in which they are served.
    """
    prospects: dict[str, Prospect] = {}
    taken: set[str] = set()
    for job in list(waiting)[: policy.predicted_jobs]:
        given_back = [booking.until for booking in job.kept_away_by if booking.until is not None]
        if len(given_back) < len(job.kept_away_by):
            continue
        chosen = _free_by(room, job, max(given_back), now, policy, taken)
        if chosen:
            taken.update(chosen)
            prospects[job.id] = Prospect(min(given_back), max(given_back), ())
    return prospects


def _free_by(
    room: Room, job: QueuedJob, moment: float, now: float, policy: Policy, taken: set[str]
) -> list[str]:
    """Devices of one node for a job, on which nobody will be by then; empty if they are too few."""
    by_node: dict[str, list[str]] = {}
    where, need = at_another_time(job.constraints), job.memory_bytes or 0
    for device in room.usable.values():
        capacity = room.capacity_bytes(device, whole=job.memory_bytes is None)
        if device.id in taken or not allows(where, device) or capacity == NOWHERE or capacity < need:
            continue
        if _is_left_by(room, device, moment, now, policy):
            by_node.setdefault(device.node, []).append(device.id)
    enough = sorted((node, ids) for node, ids in by_node.items() if len(ids) >= job.gpus)
    return enough[0][1][: job.gpus] if enough else []


def _is_left_by(room: Room, device: Device, moment: float, now: float, policy: Policy) -> bool:
    ends = [end_of(tenant.job, now, policy).latest for tenant in room.tenants.get(device.id, ())]
    return all(end is not None and end <= moment for end in ends)
