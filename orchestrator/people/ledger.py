"""Who had each device-second: a job, a foreign owner, a reservation, nobody, a drain, a failure.

Leases say what jobs had; spans say what the rest of a device was given to.  Where neither tells, nobody
looked: the agent was down.  The parts of a device add up to one at every moment.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

UNKNOWN = "unknown"
JOB = "job"


@dataclass(frozen=True, slots=True)
class Held:
    """A lease, in seconds since 1970."""

    key: object  # whose it is; ``divide`` gives it back
    start: float
    end: float  # exclusive; of one that is active the present
    part: float  # of the device, above 0 and up to 1


@dataclass(frozen=True, slots=True)
class Spell:
    """What the part of a device that no job had was given to."""

    use: str
    start: float
    end: float
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a device from one moment to another."""

    use: str
    start: float
    end: float
    part: float
    key: object = None  # of the lease, where the use is a job
    owner: str = ""  # of foreign processes

    @property
    def seconds(self) -> float:
        """Device-seconds: of a shared device only the part."""
        return (self.end - self.start) * self.part


def divide(
    start: float, end: float, held: Iterable[Held], spells: Iterable[Spell], cuts: Iterable[float] = ()
) -> Iterator[Piece]:
    """The device's time from ``start`` to ``end`` in pieces whose parts add up to one at every moment.

    Args:
        held: if the parts of overlapping leases add up to more than one, each gets its share of one.
        spells: they do not overlap; where they do, the one that began last counts.
        cuts: moments at which pieces are to be divided besides, such as midnight.
    """
    inside = [each for each in held if max(start, each.start) < min(end, each.end)]
    around = [each for each in spells if max(start, each.start) < min(end, each.end)]
    around.sort(key=lambda each: each.start)
    moments = {start, end, *cuts}
    moments.update(*((each.start, each.end) for each in inside))
    moments.update(*((each.start, each.end) for each in around))
    edges = sorted(moment for moment in moments if start <= moment <= end)
    waiting = sorted(inside, key=lambda each: each.start, reverse=True)
    active: list[Held] = []
    at = 0
    for begin, finish in pairwise(edges):
        active = [each for each in active if each.end > begin]
        while waiting and waiting[-1].start <= begin:
            active.append(waiting.pop())
        while at + 1 < len(around) and around[at + 1].start <= begin:
            at += 1
        spell = around[at] if around and around[at].start <= begin < around[at].end else None
        yield from _pieces(begin, finish, active, spell)


def _pieces(begin: float, finish: float, active: Sequence[Held], spell: Spell | None) -> Iterator[Piece]:
    total = sum(each.part for each in active)
    scale = max(1.0, total)
    for each in active:
        yield Piece(JOB, begin, finish, each.part / scale, key=each.key)
    if total < 1:
        use, owner = (spell.use, spell.owner) if spell else (UNKNOWN, "")
        yield Piece(use, begin, finish, 1 - total, owner=owner)
