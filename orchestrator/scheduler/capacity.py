"""What a person could start now: one count behind headline, tiles, REST and the command line."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from berth.shared import words
from orchestrator.exceptions import Sentence
from orchestrator.live.readings import NowReadings
from orchestrator.models import Device, Lease
from orchestrator.people.quotas import DevicesLeft
from orchestrator.people.rights import Someone
from orchestrator.scheduler import core, passes
from orchestrator.scheduler.availability import Availability, AvailabilityReader, DeviceAvailability
from orchestrator.scheduler.core.room import Room
from orchestrator.scheduler.passes.facts import device_facts
from orchestrator.sentences.errors import said


class Claim(NamedTuple):
    """What an attempt holds of a device."""

    job: str
    attempt: int
    memory_bytes: int | None  # None: the whole device


Claims = Mapping[str, Sequence[Claim]]  # by device


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """One device for one person."""

    device: Device
    standing: DeviceAvailability
    claimed_bytes: Mapping[str, int | None]  # by job; None: the whole device
    claimable_bytes: int  # memory that a job of this person could claim on it now


@dataclass(frozen=True, slots=True)
class Capacity:
    """All devices for one person, and their sums."""

    devices: Sequence[DeviceCapacity]
    free: int  # devices that jobs of this person could take now, within their limits
    beyond_limits: int  # free, but more than this person's limits allow
    limit: str  # the one that forbids those
    kept: int
    closed: int
    open_to_short: int  # of the kept devices, the ones that jobs with a time limit under this may take
    open_to_jobs_under_s: float | None
    claimable_bytes: int  # the most on one device that jobs share

    @property
    def sentence(self) -> str:
        """What is free: 2 of 8 GPUs free, 3 kept."""
        return f"{self.free} {self.rest}"

    @property
    def rest(self) -> str:
        """The sentence after its first number, which the top of a page shows large."""
        return words.capacity(
            len(self.devices),
            noun(each.device for each in self.devices),
            kept=self.kept,
            open_to=(self.open_to_short, self.open_to_jobs_under_s or 0.0),
            beyond=(self.beyond_limits, said(self.limit)),
            closed=self.closed,
            claimable_bytes=self.claimable_bytes,
        )

    def device(self, device_id: str) -> DeviceCapacity:
        return next(each for each in self.devices if each.device.pk == device_id)

    def standings(self) -> dict[str, DeviceAvailability]:
        return {each.device.pk: each.standing for each in self.devices}


def noun(devices: Iterable[Device]) -> str:
    kinds = {device.kind for device in devices}
    if kinds == {"cpu"}:
        return "CPU slots"
    return "GPUs" if kinds <= {"gpu", "sim"} else "devices"


def read_capacity(user: Someone, devices: Iterable[Device], readings: NowReadings, now: datetime) -> Capacity:
    """What each device offers a person now; leases tell which devices jobs hold.

    Args:
        devices: with their pools.
    """
    rows = list(devices)
    reader = AvailabilityReader(user, now)
    claims = _claims()
    claimable = _claimable(rows, claims, readings)
    found = []
    for device in rows:
        held = device.pk in claims
        standing = reader.judge(device, held=held, entry=readings.device(device.pk))
        open_to_all = standing.is_free or (
            standing.state == Availability.HELD
            and reader.restriction(device.pk) is None
            and reader.may_submit(device)
        )
        found.append(
            DeviceCapacity(
                device=device,
                standing=standing,
                claimed_bytes={one.job: one.memory_bytes for one in claims.get(device.pk, ())},
                claimable_bytes=claimable.get(device.pk, 0) if open_to_all else 0,
            )
        )
    return sum_up(found, reader.left)


def sum_up(devices: Sequence[DeviceCapacity], left: Mapping[str | None, DevicesLeft]) -> Capacity:
    """Count what a person could take, at most what each of their limits leaves."""
    states = Counter(each.standing.state for each in devices)
    free, limit = _within(devices, left)
    kept = [each.standing.keep for each in devices if each.standing.keep is not None]
    short = [each.shorter_than_s for each in kept if each.shorter_than_s is not None]
    shared = [each.claimable_bytes for each in devices if each.standing.state == Availability.HELD]
    reached = next((each.limit for each in left.values() if each.devices == 0), "")
    return Capacity(
        devices=devices,
        free=free,
        beyond_limits=states[Availability.FREE] - free + states[Availability.LIMITED],
        limit=limit or reached,
        kept=states[Availability.KEPT],
        closed=states[Availability.CLOSED],
        open_to_short=len(short),
        open_to_jobs_under_s=min(short, default=None),
        claimable_bytes=max(shared, default=0),
    )


def _within(devices: Sequence[DeviceCapacity], left: Mapping[str | None, DevicesLeft]) -> tuple[int, str]:
    """The free devices that limits allow together, and the limit that forbids the others."""
    by_pool: dict[tuple[str, bool], int] = defaultdict(int)
    for each in devices:
        by_pool[each.device.pool_id, each.device.kind == "cpu"] += each.standing.is_free
    limit: str = ""
    slots, gpus = 0, 0
    for (pool, is_cpu), count in by_pool.items():
        there = left.get(pool)
        allowed = count if there is None else min(count, there.devices)
        if there is not None and allowed < count:
            limit = Sentence("{limit} in pool {pool}", limit=there.limit, pool=pool)
        slots, gpus = (slots + allowed, gpus) if is_cpu else (slots, gpus + allowed)
    overall = left.get(None)
    if overall is not None and overall.devices < gpus:
        limit, gpus = overall.limit, overall.devices
    return slots + gpus, limit


def _claims() -> Claims:
    claims: dict[str, list[Claim]] = defaultdict(list)
    leases = Lease.objects.active()
    for device_id, job_id, attempt, memory_bytes in leases.values_list(
        "device_id", "attempt__job_id", "attempt__number", "memory_bytes"
    ):
        claims[device_id].append(Claim(str(job_id), attempt, memory_bytes))
    return claims


def _claimable(devices: Sequence[Device], claims: Claims, readings: NowReadings) -> dict[str, int]:
    """The memory that a share could claim on each device, as scheduling passes count it; none on unread GPUs."""
    entries = {device.pk: readings.device(device.pk) for device in devices}
    room = Room(
        [
            device_facts(
                device, entries[device.pk], {(one.job, one.attempt) for one in claims.get(device.pk, ())}
            )
            for device in devices
        ],
        [
            core.RunningJob(
                id=one.job, owner="", pool="", shares=(core.Share(device_id, one.memory_bytes),), started=0.0
            )
            for device_id, held in claims.items()
            for one in held
        ],
        passes.POLICY,
    )
    return {
        device.id: max(0, room.free_bytes(device, whole=False))
        for device in room.devices
        if entries[device.id] is not None or device.kind != "gpu"
    }
