"""Backfill reservations: devices reserved for the job at the head of a queue, so that it cannot starve.

The rule: of the nodes that could ever hold the head, the one where it can start soonest is reserved, and on
it the devices that become free first.  An earlier choice stays, except that a free device replaces a busy one.
While the head waits, nothing starts on the reserved devices, except jobs whose time limit ends them before the
head could start anyway (EASY: Lifka, "The ANL/IBM SP scheduling system", 1995).

Why the head never starves: a head that cannot start holds *every* suitable free device of that node, so only such
time-limited jobs start there.  All other jobs there end in finite time and are not replaced.  From then on every
job there ends by a limit set earlier, and no later limit is allowed.  After that, all devices are the head's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.scheduler.core.ends import End
from orchestrator.scheduler.core.room import NOWHERE, Room, allows
from orchestrator.scheduler.core.types import Device, Job


@dataclass(frozen=True, slots=True)
class BackfillSlot:
    """Devices reserved for a waiting job, and when all of them are free."""

    device_ids: tuple[str, ...]
    earliest: float
    latest: float | None  # None: not known
    shadow: float  # a job that ends by then delays nothing
    blocked_by: tuple[Job, ...]  # the jobs that hold some of these devices now


@dataclass(frozen=True, slots=True)
class _Vacancy:
    device: Device
    earliest: float
    latest: float | None
    shadow: float
    leaving: tuple[Job, ...]

    def rank(self, reserved: frozenset[str]) -> tuple[bool, bool, bool, float, float, int, str]:
        """Free devices first, then those reserved earlier, then those whose tenants end soonest."""
        device, unknown = self.device, self.latest is None
        return (
            bool(self.leaving),
            device.id not in reserved,
            unknown,
            self.latest or 0.0,
            self.earliest,
            device.index,
            device.id,
        )


def soonest(
    room: Room, job: Job, ends: Mapping[str, End], now: float, reserved: frozenset[str] = frozenset()
) -> BackfillSlot | None:
    """Where a job that does not fit now can start soonest; None if it fits on no usable node.

    Args:
        reserved: the devices that an earlier pass reserved for the job.
    """
    by_node: dict[str, list[_Vacancy]] = {}
    for device in room.usable.values():
        if allows(job.constraints, device) and (vacancy := _vacancy(room, device, job, ends, now)):
            by_node.setdefault(device.node, []).append(vacancy)
    if parts := room.span(job):
        return _over_nodes(parts, by_node, now, reserved)
    slots = {
        node: _slot(sorted(vacancies, key=lambda vacancy: vacancy.rank(reserved))[: job.gpus], now)
        for node, vacancies in by_node.items()
        if len(vacancies) >= job.gpus
    }
    for node in sorted({device.node for device in room.usable.values() if device.id in reserved}):
        if node in slots:
            return slots[node]
    return min(slots.items(), key=lambda item: (*_wait_rank(item[1]), item[0]))[1] if slots else None


def _over_nodes(
    parts: tuple[int, ...], by_node: Mapping[str, list[_Vacancy]], now: float, reserved: frozenset[str]
) -> BackfillSlot | None:
    """The nodes on which the parts of a job can start soonest, the largest part first."""
    chosen: list[_Vacancy] = []
    used: set[str] = set()
    for count in parts:
        options = {
            node: sorted(vacancies, key=lambda vacancy: vacancy.rank(reserved))[:count]
            for node, vacancies in by_node.items()
            if node not in used and len(vacancies) >= count
        }
        if not options:
            return None
        node = min(
            options,
            key=lambda node: (
                not any(vacancy.device.id in reserved for vacancy in options[node]),
                _wait_rank(_slot(options[node], now)),
                node,
            ),
        )
        used.add(node)
        chosen += options[node]
    return _slot(chosen, now)


def _wait_rank(slot: BackfillSlot) -> tuple[bool, float, float, int]:
    return (slot.latest is None, slot.latest or 0.0, slot.earliest, len(slot.blocked_by))


def _slot(chosen: list[_Vacancy], now: float) -> BackfillSlot:
    latest: float | None = now
    for vacancy in chosen:
        latest = None if latest is None or vacancy.latest is None else max(latest, vacancy.latest)
    leaving = {job.id: job for vacancy in chosen for job in vacancy.leaving}
    return BackfillSlot(
        device_ids=tuple(sorted(vacancy.device.id for vacancy in chosen)),
        earliest=max(vacancy.earliest for vacancy in chosen),
        latest=latest,
        shadow=max(vacancy.shadow for vacancy in chosen),
        blocked_by=tuple(leaving[id_] for id_ in sorted(leaving)),
    )


def _vacancy(room: Room, device: Device, job: Job, ends: Mapping[str, End], now: float) -> _Vacancy | None:
    """When a device has room for one rank once the tenants that end first have left; None if never."""
    whole, need = job.memory_bytes is None, job.memory_bytes or 0
    capacity = room.capacity_bytes(device, whole=whole)
    if capacity == NOWHERE or capacity < need:
        return None
    if room.free_bytes(device, whole=whole) >= need and not room.crowded(device, job):
        return _Vacancy(device, now, now, now, ())
    tenants = [(ends[tenant.job.id], tenant) for tenant in room.tenants.get(device.id, ())]
    if not tenants:  # memory of unknown origin: it may never become free
        return None
    tenants.sort(key=lambda pair: (pair[0].latest is None, pair[0].latest or 0.0, pair[1].job.id))
    leaving = []
    free = capacity - sum(tenant.memory_bytes or capacity for _, tenant in tenants)
    for end, tenant in tenants:
        leaving.append((end, tenant.job))
        free += tenant.memory_bytes or capacity
        staying = [one.job for _, one in tenants[len(leaving) :]]
        if not whole and free >= need and not room.crowds(device, job, staying):
            break
    last = [end.latest for end, _ in leaving]
    return _Vacancy(
        device,
        earliest=max(end.earliest for end, _ in leaving),
        latest=None if None in last else max(moment for moment in last if moment is not None),
        shadow=max(end.shadow for end, _ in leaving),
        leaving=tuple(gone for _, gone in leaving),
    )
