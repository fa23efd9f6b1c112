"""The devices and the free memory of one pool while a pass places jobs."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.scheduler.core.neighbours import UNKNOWN, Neighbours
from orchestrator.scheduler.core.types import (
    Constraints,
    Device,
    Job,
    Policy,
    RunningJob,
    Share,
)

NOWHERE = -1  # no node has enough devices


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job on a device."""

    job: Job
    memory_bytes: int | None  # None: the whole device


def allows(where: Constraints, device: Device) -> bool:
    return (
        (not where.only_devices or device.id in where.only_devices)
        and device.id not in where.avoid_devices
        and (not where.only_nodes or device.node in where.only_nodes)
        and (where.mig_profile is None or device.mig_profile == where.mig_profile)
        and (where.slices or device.mig_parent is None)
        and device.id not in where.booked_devices
    )


def at_another_time(where: Constraints) -> Constraints:
    """The same constraints without the devices that bookings keep for others now."""
    return replace(where, booked_devices=()) if where.booked_devices else where


def once_furnished(where: Constraints) -> Constraints:
    """The same constraints when the packages of the job are on every server."""
    return replace(where, only_nodes=(), for_packages=False) if where.for_packages else where


class Room:
    """The devices of a pool and their tenants; only ``take`` changes it, and free memory only shrinks."""

    def __init__(
        self,
        devices: Iterable[Device],
        running: Iterable[RunningJob],
        policy: Policy,
        neighbours: Neighbours = UNKNOWN,
    ) -> None:
        self.devices = sorted(devices, key=lambda device: (device.node, device.index, device.id))
        self._policy = policy
        self._neighbours = neighbours
        # A GPU that is cut into slices is used through its slices only.
        self._parents = {device.mig_parent for device in self.devices if device.mig_parent}
        self.kinds = frozenset(device.kind for device in self.devices)
        self.usable = {d.id: d for d in self.devices if d.offered and d.id not in self._parents}
        there = Counter(d.node for d in self.devices if d.id not in self._parents)
        self.largest_node = max(there.values(), default=0)
        self.tenants: dict[str, list[Tenant]] = defaultdict(list)
        self._claimed: Counter[str] = Counter()
        self._whole: set[str] = set()
        for job in sorted(running, key=lambda job: job.id):
            self._settle(job, job.shares)
        self._static: dict[tuple[object, ...], int] = {}
        self._free: dict[tuple[object, ...], int] = {}
        self._spans: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._sizes: dict[tuple[object, ...], list[int]] = {}

    def take(self, job: Job, shares: Sequence[Share]) -> None:
        self._settle(job, shares)
        self._free.clear()
        self._sizes.clear()

    def _settle(self, job: Job, shares: Sequence[Share]) -> None:
        for share in shares:
            taken_bytes = share.taken_bytes
            self.tenants[share.device_id].append(Tenant(job, taken_bytes))
            if taken_bytes is None:
                self._whole.add(share.device_id)
            else:
                self._claimed[share.device_id] += taken_bytes

    def calm(self, device: Device) -> bool:
        """Whether the memory held outside running jobs is small enough to use the device as a whole."""
        return device.others_bytes <= self._policy.foreign_allowed_bytes

    def capacity_bytes(self, device: Device, *, whole: bool) -> int:
        """The memory that jobs could have on a device without tenants; NOWHERE if none could run there."""
        if device.id not in self.usable or (whole and not self.calm(device)):
            return NOWHERE
        return device.total_bytes if whole else max(0, device.total_bytes - device.others_bytes)

    def free_bytes(self, device: Device, *, whole: bool) -> int:
        """The memory that a job can claim on a device now; NOWHERE if none."""
        capacity = self.capacity_bytes(device, whole=whole)
        tenants = self.tenants.get(device.id, ())
        if whole:
            return NOWHERE if tenants else capacity
        if capacity == NOWHERE or device.id in self._whole:
            return NOWHERE
        if not tenants:  # no job of Berth: all used memory belongs to external processes, listed or not
            return max(0, min(capacity, device.total_bytes - device.used_bytes))
        return max(0, capacity - self._claimed[device.id])

    def crowds(self, device: Device, job: Job, tenants: Iterable[Job]) -> tuple[Job, float] | None:
        """Whom a job would slow beyond the pool's limit on a device, itself included, and how much."""
        if not job.work or job.memory_bytes is None:
            return None
        there = [job, *(tenant for tenant in tenants if tenant.work)]
        worst = self._neighbours.worst(device.pool, device.model, [one.work for one in there])
        return None if worst is None else (there[worst[0]], worst[1])

    def crowded(self, device: Device, job: Job) -> tuple[Job, float] | None:
        """As ``crowds``, beside the present tenants of the device."""
        return self.crowds(device, job, [tenant.job for tenant in self.tenants.get(device.id, ())])

    def kept_apart(self, job: Job) -> tuple[Device, Job, float] | None:
        """The first device that has memory for a job which its neighbours there keep from it."""
        if not job.work or job.memory_bytes is None:
            return None
        for device in self.usable.values():
            if allows(job.constraints, device) and self.free_bytes(device, whole=False) >= job.memory_bytes:
                slowed = self.crowded(device, job)
                if slowed is not None:
                    return device, *slowed
        return None

    def most_possible_bytes(self, gpus: int, where: Constraints) -> int:
        """The memory that each of ``gpus`` devices of one node has, used or broken ones included."""
        where = at_another_time(where)
        key = ("possible", gpus, where)
        if key not in self._static:
            sizes = {d.id: d.total_bytes for d in self.devices if d.id not in self._parents}
            self._static[key] = self._most(sizes, gpus, where)
        return self._static[key]

    def span(self, job: Job) -> tuple[int, ...]:
        """How many ranks the nodes get, most first, of a job that no single node could ever have.

        Empty where one node could, where all together could not, and for a job that may not span nodes.
        """
        where, need = at_another_time(job.constraints), job.memory_bytes or 0
        if not where.spans:
            return ()
        key = (job.gpus, where, need)
        if key not in self._spans:
            able = Counter(
                device.node
                for device in self.devices
                if device.id not in self._parents and device.total_bytes >= need and allows(where, device)
            )
            self._spans[key] = _dealt(job.gpus, sorted(able.values(), reverse=True))
        return self._spans[key]

    def whole_nodes_for(self, gpus: int, where: Constraints) -> bool:
        """Whether all nodes together have enough devices, used or broken ones included."""
        where = at_another_time(where)
        there = sum(d.id not in self._parents and allows(where, d) for d in self.devices)
        return there >= gpus

    def most_capacity_bytes(self, gpus: int, where: Constraints, *, whole: bool) -> int:
        """The memory that each of ``gpus`` devices of one node could offer if no job of Berth ran."""
        key = ("capacity", gpus, where, whole)
        if key not in self._static:
            sizes = {id_: self.capacity_bytes(d, whole=whole) for id_, d in self.usable.items()}
            self._static[key] = self._most(sizes, gpus, where)
        return self._static[key]

    def most_free_bytes(
        self, gpus: int, where: Constraints, *, whole: bool, held: frozenset[str] = frozenset()
    ) -> int:
        """The memory that each of ``gpus`` devices of one node offers now, ``held`` ones excluded."""
        key = (gpus, where, whole, held)
        if key not in self._free:
            sizes = {
                id_: self.free_bytes(device, whole=whole)
                for id_, device in self.usable.items()
                if id_ not in held
            }
            self._free[key] = self._most(sizes, gpus, where)
        return self._free[key]

    def count_free(self, where: Constraints, memory_bytes: int | None, held: frozenset[str]) -> int:
        """How many devices could take one rank now."""
        key = (where, memory_bytes is None, held)
        if key not in self._sizes:
            self._sizes[key] = sorted(
                self.free_bytes(device, whole=memory_bytes is None)
                for id_, device in self.usable.items()
                if id_ not in held and allows(where, device)
            )
        return len(self._sizes[key]) - bisect_left(self._sizes[key], memory_bytes or 0)

    def _most(self, sizes: Mapping[str, int], gpus: int, where: Constraints) -> int:
        by_node: dict[str, list[int]] = defaultdict(list)
        for device in self.devices:
            if sizes.get(device.id, NOWHERE) != NOWHERE and allows(where, device):
                by_node[device.node].append(sizes[device.id])
        enough = [sorted(have, reverse=True)[gpus - 1] for have in by_node.values() if len(have) >= gpus]
        return max(enough, default=NOWHERE)


def _dealt(gpus: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The fewest nodes of these sizes that have enough devices together, with what each gives; empty where one is enough or all are too few."""
    parts: list[int] = []
    for size in sizes:
        parts.append(min(size, gpus - sum(parts)))
        if sum(parts) == gpus:
            break
    return tuple(parts) if len(parts) > 1 and sum(parts) == gpus else ()
