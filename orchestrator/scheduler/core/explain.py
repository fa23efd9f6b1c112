"""The one sentence that tells people why a job waits."""

from collections.abc import Collection, Sequence

from berth import words
from orchestrator.scheduler.core.forecast import Prospect
from orchestrator.scheduler.core.quota import Quotas
from orchestrator.scheduler.core.room import NOWHERE, Room, allows, at_another_time
from orchestrator.scheduler.core.types import Device, Job, QueuedJob

_GIB = 2**30
_NOUNS = {
    "gpu": ("GPU", "GPUs"),
    "cpu": ("CPU slot", "CPU slots"),
    "sim": ("simulated GPU", "simulated GPUs"),
}
_LADDER = ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h"), (float("inf"), 86400, "days"))


def called(job: Job) -> str:
    """What people call a job: its name, else the short form of its id."""
    return job.name or job.id[-8:]


def noun(kinds: Collection[str], count: int) -> str:
    """The word for devices of these kinds: a mixed or empty pool has plain devices."""
    plain = ("device", "devices")
    one, many = _NOUNS.get(next(iter(kinds)), plain) if len(kinds) == 1 else plain
    return one if count == 1 else many


def lasting(seconds: float) -> str:
    """A duration in the largest unit that still says something: "50 s", "6 min", "3 h"."""
    unit, word = _unit(seconds)
    return f"{max(1, round(seconds / unit))} {word}"


def _unit(seconds: float) -> tuple[int, str]:
    return next((unit, word) for limit, unit, word in _LADDER if seconds < limit)


def gib(memory_bytes: int) -> str:
    return f"{memory_bytes / _GIB:.3g} GiB"


def impossible(room: Room, job: Job) -> str:
    """Why the pool can never fit a job."""
    most = room.most_possible_bytes(job.gpus, job.constraints)
    things = noun(room.kinds, job.gpus)
    if most != NOWHERE:
        largest = "the largest has" if job.gpus == 1 else "so many have only"
        return (
            f"Needs {gib(job.memory_bytes or 0)} on {job.gpus} {things}, but in pool {job.pool} "
            f"{largest} {gib(most)}. Ask for less memory or choose another pool."
        )
    there = sum(allows(job.constraints, device) for device in room.devices)
    if there >= job.gpus:
        return (
            f"Needs {job.gpus} {things} on one server, but no server of pool {job.pool} has so many. "
            f"Ask for fewer or choose another pool."
        )
    which = "" if there == len(room.devices) else " that this job allows"
    return (
        f"Needs {job.gpus} {things}, but pool {job.pool} has {there}{which}. "
        f"Ask for fewer or choose another pool."
    )


def unavailable(room: Room, job: Job) -> str:
    """Why too few devices could be used even if no job of ours ran."""
    whole, need = job.memory_bytes is None, job.memory_bytes or 0
    fitting = [device for device in room.devices if allows(job.constraints, device)]
    able = [device for device in fitting if room.capacity_bytes(device, whole=whole) >= need]
    causes = [_cause(room, device) for device in fitting if device not in able]
    said = "; ".join(causes[:3]) + ("; ..." if len(causes) > 3 else "")
    return (
        f"Waits for {job.gpus} {noun(room.kinds, job.gpus)}; "
        f"{len(able)} of {len(fitting)} can be used now ({said})."
    )


def devices_named(devices: Sequence[Device]) -> str:
    """Some devices as the subject of a sentence, with its verb: "GPUs 0, 1 are"."""
    chosen = sorted(devices, key=lambda device: (device.index, device.id))
    numbers = ", ".join(str(device.index) for device in chosen[:4]) + (", ..." if len(chosen) > 4 else "")
    kinds = {device.kind for device in chosen}
    return f"{noun(kinds, len(chosen))} {numbers} {'is' if len(chosen) == 1 else 'are'}"


def out_of_use(device: Device) -> str:
    """Why nothing is placed on a device that is not offered."""
    name = f"{noun([device.kind], 1)} {device.index}"
    if device.admin_state != "enabled":
        return f"{name} is {device.admin_state}"
    if device.health == "fenced":
        return f"{name} is fenced until its last job is proven dead"
    return f"{name} is {device.health}"


def _cause(room: Room, device: Device) -> str:
    if not device.offered:
        return out_of_use(device)
    name = f"{noun([device.kind], 1)} {device.index}"
    if device.residue_bytes > 0:
        return f"{name} still holds {gib(device.residue_bytes)} of a job that has ended"
    if device.foreign_bytes > 0:
        return f"{name} is in use outside Berth, {gib(device.foreign_bytes)}"
    return f"{name} is cut into slices"


def too_few(room: Room, job: QueuedJob, held: frozenset[str], head: Job | None) -> str:
    """What is needed, what is free, and what is free but kept for the head."""
    wanted = f"{job.gpus} {noun(room.kinds, job.gpus)}"
    free = room.count_free(job.constraints, job.memory_bytes, held)
    state = "none is free" if free == 0 else f"{free} is free" if free == 1 else f"{free} are free"
    if job.memory_bytes is not None:
        wanted += f" with {gib(job.memory_bytes)} free" + (" on each" if job.gpus > 1 else "")
        state = "there is none" if free == 0 else f"there is {free}" if free == 1 else f"there are {free}"
    if free >= job.gpus:
        wanted, state = f"{wanted} on one server", f"{state}, on different servers"
    if job.kept_away_by:
        later = at_another_time(job.constraints)
        booked = room.count_free(later, job.memory_bytes, held) - free
        state += f", {booked} more {'is' if booked == 1 else 'are'} {booked_for(job)}" if booked else ""
    kept = room.count_free(job.constraints, job.memory_bytes, frozenset()) - free
    if kept and head is not None:
        state += f", {kept} {'is' if kept == 1 else 'are'} kept for {called(head)}"
    return f"Waits for {wanted}; {state}."


def booked_for(job: QueuedJob) -> str:
    """For whom the calendar keeps devices from a job: the names of the bookings."""
    first = job.kept_away_by[0]
    if len(job.kept_away_by) == 1:
        return f"{'reserved' if first.owners else 'out'} for {first.name}"
    names = [booking.name for booking in sorted(job.kept_away_by, key=lambda one: (one.start, one.id))]
    return f"kept for {', '.join(names[:-1][:3])}{', ...' if len(names) > 4 else ''} and {names[-1]}"


def reserved(room: Room, job: QueuedJob, now: float) -> str:
    """What the calendar keeps from a job, from when until when, and what would help."""
    booked = set(job.constraints.booked_devices)
    held = [str(device.index) for device in room.devices if device.id in booked]
    names = f"{noun(room.kinds, len(held))} {', '.join(held[:4])}{', ...' if len(held) > 4 else ''}"
    verb = "is" if len(held) == 1 else "are"
    first = min(job.kept_away_by, key=lambda one: (one.start, one.id))
    ends = [one.until for one in job.kept_away_by]
    sentence = f"Waits for {job.gpus} {noun(room.kinds, job.gpus)}; {names} {verb} {booked_for(job)}"
    if first.start > now:
        help_ = "shorter time limit" if job.time_limit_s is not None else "time limit that ends before"
        return f"{sentence} in {lasting(first.start - now)}; a {help_} would let it start."
    last = None if None in ends else max(end for end in ends if end is not None)
    return f"{sentence}{'' if last is None else f' for another {lasting(last - now)}'}."


def makes_room(stopping: Sequence[Job]) -> str:
    """Jobs are being stopped for it, or it waits until the last of them has left its devices."""
    if not stopping:
        return "Waits for its devices, which are being cleared for it."
    more = f" and {len(stopping) - 1} more" if len(stopping) > 1 else ""
    return f"Waits for {called(stopping[0])}{more} to save a checkpoint and make room."


def held_for(room: Room, job: QueuedJob, head: Job) -> str:
    """Enough is free, but it is kept for the head of the queue."""
    free = room.count_free(job.constraints, job.memory_bytes, frozenset())
    verb = "is" if free == 1 else "are"
    return (
        f"Waits for {job.gpus} {noun(room.kinds, job.gpus)}; {free} {verb} free but kept for {called(head)}."
    )


def in_front(first: str, length: int) -> str:
    """Who is served before it: the name of the first, and how many there are."""
    if length > 1:
        return f" {first} and {length - 1} more are ahead."
    return f" {first} is ahead." if length else ""


def expected(prospect: Prospect, now: float) -> str:
    """When it may start, or why nobody knows."""
    if prospect.earliest is not None and prospect.latest is not None:
        return f" Expected {words.span(prospect.earliest - now, prospect.latest - now)}."
    if prospect.unknown is None:
        return ""
    return (
        f" When is not known: {called(prospect.unknown)} has no time limit and {_missing(prospect.unknown)}."
    )


def _missing(job: Job) -> str:
    """What its reports lack for its end to be known."""
    if job.progress_done is None:
        return "reports no progress"
    if job.progress_total is None:
        return "its total number of steps is not known"
    return "its speed is not known yet"


def depends(succeed: Sequence[str], end: Sequence[str] = ()) -> str:
    """What has to succeed, and what has only to end."""
    parts = [f"{_listed(names)} to {verb}" for names, verb in ((succeed, "succeed"), (end, "end")) if names]
    return f"Waits for {' and for '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{len(names)} jobs ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def array_full(job: Job, holding: int) -> str:
    """Its array has as many at work as may be at once."""
    return f"Waits for its array: {holding} of at most {job.array_at_most} of its jobs run."


def not_before(seconds: float) -> str:
    return f"Starts in {lasting(seconds)} at the earliest, as asked."


def no_devices(job: Job) -> str:
    return f"Pool {job.pool} has no devices now; an administrator can add some."


def over_quota(room: Room, job: QueuedJob, quotas: Quotas) -> str:
    """The owner's limit that holds a job back."""
    return quotas.sentence(job, noun(room.kinds, 2))
