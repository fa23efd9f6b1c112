"""What sentences are put together of: devices by their numbers, bookings by their names, durations, amounts."""

from collections.abc import Mapping, Sequence
from typing import Any

from berth.shared.language import plural_text, text

Facts = Mapping[str, Any]
_GIB = 2**30
_NOUNS = {
    "gpu": ("GPU", "GPUs"),
    "cpu": ("CPU slot", "CPU slots"),
    "sim": ("simulated GPU", "simulated GPUs"),
}
_LADDER = (
    (90, 1, "{count} s"),
    (90 * 60, 60, "{count} min"),
    (36 * 3600, 3600, "{count} h"),
    (float("inf"), 86400, "{count} days"),
)


def noun(kinds: Sequence[str], count: int) -> str:
    """The word for devices of these kinds: a mixed or empty pool has plain devices."""
    plain = ("device", "devices")
    one, many = _NOUNS.get(kinds[0], plain) if len(kinds) == 1 else plain
    return text(one) if count == 1 else text(many)


def lasting(seconds: float) -> str:
    """A duration in the largest unit that still says something: "50 s", "6 min", "3 h"."""
    unit, template = next((unit, template) for limit, unit, template in _LADDER if seconds < limit)
    return text(template, count=max(1, round(seconds / unit)))


def gib(memory_bytes: int) -> str:
    return f"{memory_bytes / _GIB:.3g} GiB"


def joined(names: Sequence[str], *, more: bool = False) -> str:
    """Names as a part of a sentence: "a", "a and b", "a, b and c"; with ``more`` after them that are not named."""
    if len(names) == 1:
        return names[0]
    dots = ", ..." if more else ""
    return text("{names} and {last}", names=", ".join(names[:-1]) + dots, last=names[-1])


def devices_are(facts: Facts) -> str:
    """Some devices as the subject of a sentence, with its verb: "GPUs 0, 1 are"."""
    count, numbers = facts["devices"], ", ".join(map(str, facts["numbers"]))
    dots = ", ..." if count > len(facts["numbers"]) else ""
    named = f"{noun(facts['device_kinds'], count)} {numbers}{dots}"
    return plural_text("{devices} is", "{devices} are", count, devices=named)


def booked_for(facts: Facts) -> str:
    """For whom the calendar keeps devices: the names of the bookings."""
    names = facts["names"]
    if facts["bookings"] == 1:
        one = names[0]
        return (
            text("out for {name}", name=one)
            if facts["maintenance"]
            else text("reserved for {name}", name=one)
        )
    return text("kept for {names}", names=joined(names, more=facts["bookings"] > len(names)))


def unusable(facts: Facts) -> str:
    """Why a device cannot be used."""
    name = f"{noun([facts['device_kind']], 1)} {facts['number']}"
    match facts["state"]:
        case "fenced":
            return text("{device} is fenced until its last job is proven dead", device=name)
        case "silent":
            return text("{device} is on a server that does not answer", device=name)
        case "residue":
            held = gib(facts["held_bytes"])
            return text("{device} still holds {memory} of a job that has ended", device=name, memory=held)
        case "foreign":
            held = gib(facts["held_bytes"])
            return text("{device} is in use outside Berth, {memory}", device=name, memory=held)
        case "sliced":
            return text("{device} is cut into slices", device=name)
        case state:
            return text("{device} is {state}", device=name, state=text(state))
