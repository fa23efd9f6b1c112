"""Why a job waits, as facts; ``orchestrator.sentences.waits`` has the words."""

from collections.abc import Collection, Sequence
from typing import TypedDict

from orchestrator.scheduler.core.ends import needed_s
from orchestrator.scheduler.core.prospects import Prospect
from orchestrator.scheduler.core.room import NOWHERE, Room, allows, at_another_time
from orchestrator.scheduler.core.types import (
    Booking,
    Device,
    Facts,
    Job,
    LentPool,
    QueuedJob,
)

NAMED = 4  # devices, jobs or bookings; of more the sentence gives the first few
CAUSES = 3


def called(job: Job) -> str:
    """What people call a job: its name, else the short form of its id."""
    return job.name or job.id[-8:]


def _wanted(room: Room, job: Job) -> dict[str, int | list[str]]:
    wanted: dict[str, int | list[str]] = {"gpus": job.gpus, "device_kinds": sorted(room.kinds)}
    if parts := room.span(job):
        wanted["servers"] = len(parts)
    if job.constraints.for_data:
        wanted["have_data"] = sorted(job.constraints.only_nodes)
    if job.constraints.for_image:
        wanted["has_image"] = True
    if job.constraints.for_packages:
        wanted["have_packages"] = sorted(job.constraints.only_nodes)
    return wanted


def lent(job: Job, pool: LentPool) -> Facts:
    """What another system was asked for, and whether an allocation is too short for the job."""
    facts = {**pool.facts, "gpus": job.gpus}
    needs_s = needed_s(job)
    if needs_s is not None and needs_s > pool.longest_s:
        return {**facts, "needs_s": needs_s, "longest_s": pool.longest_s}
    return facts


def impossible(room: Room, job: Job, pool: LentPool | None = None) -> Facts:
    """Why the pool can never fit a job: what it has, in memory or in devices."""
    facts = {**_wanted(room, job), "pool": job.pool}
    if pool is not None and job.constraints.only_nodes and not job.constraints.for_packages:
        return {**facts, "needs_this_server": True}
    if pool is not None and job.gpus > pool.devices:
        return {**facts, "devices": max(pool.devices, room.largest_node), "others": False}
    most = room.most_possible_bytes(job.gpus, job.constraints)
    if most != NOWHERE:
        return {**facts, "memory_bytes": job.memory_bytes or 0, "most_bytes": most}
    there = sum(allows(job.constraints, device) for device in room.devices)
    return {**facts, "devices": there, "others": there != len(room.devices)}


def unavailable(room: Room, job: Job) -> Facts:
    """Why too few devices could be used even if no job of ours ran."""
    whole, need = job.memory_bytes is None, job.memory_bytes or 0
    fitting = [device for device in room.devices if allows(job.constraints, device)]
    able = [device for device in fitting if room.capacity_bytes(device, whole=whole) >= need]
    causes = [_cause(device) for device in fitting if device not in able]
    return {
        **_wanted(room, job),
        "usable": len(able),
        "fitting": len(fitting),
        "causes": causes[:CAUSES],
        "more_causes": len(causes) > CAUSES,
    }


class NamedDevices(TypedDict):
    """Some devices in words: what they are, how many, and the numbers of the first."""

    device_kinds: list[str]
    devices: int
    numbers: list[int]


def named(devices: Collection[Device]) -> NamedDevices:
    """Some devices: what they are, how many, and the numbers of the first."""
    chosen = sorted(devices, key=lambda device: (device.index, device.id))
    return {
        "device_kinds": sorted({device.kind for device in chosen}),
        "devices": len(chosen),
        "numbers": [device.index for device in chosen[:NAMED]],
    }


def out_of_use(device: Device) -> Facts:
    """Why nothing is placed on a device that is not offered."""
    state = device.admin_state if device.admin_state != "enabled" else device.health
    return {"device_kind": device.kind, "number": device.index, "state": state}


def _cause(device: Device) -> Facts:
    if not device.offered:
        return out_of_use(device)
    name = {"device_kind": device.kind, "number": device.index}
    if device.residue_bytes > 0:
        return {**name, "state": "residue", "held_bytes": device.residue_bytes}
    if device.foreign_bytes > 0:
        return {**name, "state": "foreign", "held_bytes": device.foreign_bytes}
    return {**name, "state": "sliced"}


def too_few(room: Room, job: QueuedJob, held: frozenset[str], head: Job | None) -> Facts:
    """What is needed, what is free, and what is free but kept for the head."""
    free = room.count_free(job.constraints, job.memory_bytes, held)
    facts: dict[str, object] = {**_wanted(room, job), "free": free}
    if job.memory_bytes is not None:
        facts["memory_bytes"] = job.memory_bytes
    if job.kept_away_by:
        later = at_another_time(job.constraints)
        facts["booked"] = room.count_free(later, job.memory_bytes, held) - free
        facts["booked_for"] = booked_for(job.kept_away_by)
    kept = room.count_free(job.constraints, job.memory_bytes, frozenset()) - free
    if kept and head is not None:
        facts["kept"], facts["kept_for"] = kept, called(head)
    return facts


def kept_apart(room: Room, job: Job, device: Device, slowed: Job, slowdown: float) -> Facts:
    """Where memory is free for a job, and who would be slowed too much if it started there."""
    beside = max(room.tenants[device.id], key=lambda tenant: (tenant.job.id != slowed.id, tenant.job.id)).job
    return {
        **_wanted(room, job),
        "device_kind": device.kind,
        "number": device.index,
        "itself": slowed.id == job.id,
        "slowed": called(slowed),
        "beside": called(beside) if slowed.id == job.id else called(job),
        "percent": round(100 * (slowdown - 1)),
    }


def booked_for(bookings: Sequence[Booking]) -> Facts:
    """For whom the calendar keeps devices from a job: the names of the bookings, in their order."""
    order = sorted(bookings, key=lambda one: (one.start, one.id))
    names = [booking.name for booking in order]
    return {
        "bookings": len(names),
        "names": [*names[:-1][: NAMED - 1], names[-1]],
        "maintenance": len(names) == 1 and not order[0].owners,
    }


def reserved(room: Room, job: QueuedJob, now: float) -> Facts:
    """What the calendar keeps from a job, from when until when."""
    booked = set(job.constraints.booked_devices)
    held = [device.index for device in room.devices if device.id in booked]
    first = min(job.kept_away_by, key=lambda one: (one.start, one.id))
    ends = [one.until for one in job.kept_away_by]
    facts = {
        **_wanted(room, job),
        "devices": len(held),
        "numbers": held[:NAMED],
        "booked_for": booked_for(job.kept_away_by),
    }
    if first.start > now:
        return {**facts, "from_s": first.start, "has_time_limit": job.time_limit_s is not None}
    known = [end for end in ends if end is not None]
    return {**facts, "until_s": max(known) if len(known) == len(ends) else None}


def makes_room(stopping: Sequence[Job]) -> Facts:
    """Jobs are being stopped for it, or it waits until the last of them has left its devices."""
    return {"stopping": len(stopping), "stopped_job": called(stopping[0]) if stopping else None}


def held_for(room: Room, job: QueuedJob, head: Job) -> Facts:
    """Enough is free, but reserved for the head of the queue."""
    free = room.count_free(job.constraints, job.memory_bytes, frozenset())
    return {**_wanted(room, job), "free": free, "kept_for": called(head)}


def unknown(prospect: Prospect) -> Facts:
    """Why nobody knows when it may start; empty where somebody does."""
    job = prospect.unknown
    if job is None or (prospect.earliest is not None and prospect.latest is not None):
        return {}
    return {"unknown_end_of": called(job), "lacks": _missing(job)}


def _missing(job: Job) -> str:
    """What its reports lack for its end to be known."""
    if job.progress_done is None:
        return "progress"
    return "total" if job.progress_total is None else "speed"


def depends(succeed: Sequence[str], end: Sequence[str]) -> Facts:
    """What has to succeed, and what has only to end: how many, and the names of the first."""
    return {
        "to_succeed": len(succeed),
        "succeed": list(succeed[: NAMED - 1]),
        "to_end": len(end),
        "end": list(end[: NAMED - 1]),
    }


def array_full(job: Job, holding: int) -> Facts:
    """Its array has as many at work as may be at once."""
    return {"running": holding, "at_most": job.array_at_most}
