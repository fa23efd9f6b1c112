"""Divide each device's time by use: jobs, external processes, reservations, idle, drained, failed.

Leases record the jobs, spans the other uses. Time that neither covers is unknown: the agent was down. The
shares of a device add up to one at every moment.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

UNKNOWN = "unknown"
JOB = "job"


@dataclass(frozen=True, slots=True)
class Held:
    """A lease, in seconds since 1970."""

    key: object  # returned by ``divide`` in each piece
    start: float
    end: float  # exclusive; now, if the lease is active
    part: float  # share of the device: above 0, up to 1


@dataclass(frozen=True, slots=True)
class Spell:
    """Another use of a device than by jobs."""

    use: str
    start: float
    end: float
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A share of a device for a period."""

    use: str
    start: float
    end: float
    part: float
    key: object = None  # of the lease, if the use is a job
    owner: str = ""  # of foreign processes

    @property
    def seconds(self) -> float:
        """Device-seconds; a shared device counts in proportion to the share."""
        return (self.end - self.start) * self.part


def divide(
    start: float, end: float, held: Iterable[Held], spells: Iterable[Spell], cuts: Iterable[float] = ()
) -> Iterator[Piece]:
    """Divide a device's time into pieces whose shares add up to one at every moment.

    Args:
        held: overlapping leases whose shares exceed one are scaled down to one.
        spells: other uses; if they overlap, the latest one counts.
        cuts: further times at which to split pieces, such as midnight.
    """
    leases = [lease for lease in held if max(start, lease.start) < min(end, lease.end)]
    others = [spell for spell in spells if max(start, spell.start) < min(end, spell.end)]
    others.sort(key=lambda spell: spell.start)
    moments = {start, end, *cuts}
    moments.update(*((lease.start, lease.end) for lease in leases))
    moments.update(*((spell.start, spell.end) for spell in others))
    edges = sorted(moment for moment in moments if start <= moment <= end)
    upcoming = sorted(leases, key=lambda lease: lease.start, reverse=True)
    active: list[Held] = []
    at = 0
    for begin, finish in pairwise(edges):
        active = [lease for lease in active if lease.end > begin]
        while upcoming and upcoming[-1].start <= begin:
            active.append(upcoming.pop())
        while at + 1 < len(others) and others[at + 1].start <= begin:
            at += 1
        spell = others[at] if others and others[at].start <= begin < others[at].end else None
        yield from _pieces(begin, finish, active, spell)


def _pieces(begin: float, finish: float, active: Sequence[Held], spell: Spell | None) -> Iterator[Piece]:
    total = sum(lease.part for lease in active)
    scale = max(1.0, total)
    for lease in active:
        yield Piece(JOB, begin, finish, lease.part / scale, key=lease.key)
    if total < 1:
        use, owner = (spell.use, spell.owner) if spell else (UNKNOWN, "")
        yield Piece(use, begin, finish, 1 - total, owner=owner)
