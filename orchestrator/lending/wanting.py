"""How many pilots a pool wants, and which it can spare: pure, without clock, database or system."""

from collections.abc import Sequence
from typing import NamedTuple


class Limits(NamedTuple):
    """What a pool may ask for."""

    devices: int  # of one pilot
    most_pilots: int
    idle_s: float


class PilotFacts(NamedTuple):
    """A pilot that is not over."""

    id: int
    joined: bool  # its server is there; otherwise it is asked for, waits, or is just coming
    used: int = 0  # devices that jobs hold
    free: int = 0  # devices on which a job can start now
    idle_for_s: float = 0.0  # since a job held a device, or since it joined
    leaving: bool = False  # it was given back, or too near its end for another job


class Decision(NamedTuple):
    """What is to be done now."""

    request: int = 0
    release: tuple[int, ...] = ()


def decide(limits: Limits, waiting: Sequence[int], pilots: Sequence[PilotFacts]) -> Decision:
    """Ask for the pilots that waiting jobs need beyond those that are coming, and spare those that nobody needs.

    Args:
        waiting: the devices that each waiting job needs, all on one server; jobs that no pilot fits are left out.
    """
    ours = [pilot for pilot in pilots if not pilot.leaving]
    rooms = [pilot.free if pilot.joined else limits.devices for pilot in sorted(ours, key=_use_first)]
    order = sorted(ours, key=_use_first)
    wanted = _fill(rooms, [need for need in waiting if 0 < need <= limits.devices], limits.devices)
    unused = [pilot for pilot, taken in zip(order, wanted[: len(order)], strict=True) if not taken]
    release = tuple(sorted(pilot.id for pilot in unused if _can_spare(pilot, limits)))
    # What is given back counts until the system has ended it, so that a pool never holds more than its most.
    room = max(0, limits.most_pilots - len(pilots))
    return Decision(min(room, len(wanted) - len(order)), release)


def _use_first(pilot: PilotFacts) -> tuple[bool, bool, int]:
    """Waiting jobs go to pilots that are there, then to those in use, so that idle ones are spared."""
    return not pilot.joined, not pilot.used, pilot.id


def _fill(rooms: Sequence[int], needs: Sequence[int], size: int) -> list[bool]:
    """Put each need into the first room that has so much left, the largest first; new rooms have ``size``.

    Returns:
        Whether anything was put into each room, the given ones first.
    """
    left, taken = list(rooms), [False] * len(rooms)
    for need in sorted(needs, reverse=True):
        at = next((index for index, room in enumerate(left) if room >= need), None)
        if at is None:
            at = len(left)
            left.append(size)
            taken.append(False)
        left[at] -= need
        taken[at] = True
    return taken


def _can_spare(pilot: PilotFacts, limits: Limits) -> bool:
    if not pilot.joined:
        return True
    return pilot.used == 0 and pilot.idle_for_s >= limits.idle_s
