"""Which jobs should hold the devices now, by how much work is done for each device (pure counting)."""

from collections.abc import Collection, Iterable
from math import inf

from orchestrator.scheduler.core.ranking import Standing

_EPS = 1e-9


def choose(ordered: Iterable[Standing], units: float, swaps: int, sizes: Collection[float]) -> set[str]:
    """Fill ``units`` devices in the order given; then let a job that is too large for the rest replace
    the least urgent ones where it ends sooner than they do together (a greedy knapsack and its repair).

    Args:
        sizes: all that occur among ``ordered``; once none of them can matter any more, the rest is not read.
    """
    smallest, most = min(sizes, default=0.0), min(swaps, len(sizes))
    inside: list[Standing] = []
    outside: dict[float, Standing] = {}  # the first of each size
    for candidate in ordered:
        need = candidate.units
        if need <= units + _EPS:
            units -= need
            inside.append(candidate)
        elif len(outside) < swaps and need not in outside:
            outside[need] = candidate
        elif len(outside) >= most and smallest > units + _EPS:
            break
    for candidate in outside.values():
        units = _swap_in(candidate, inside, units)
    return {candidate.id for candidate in inside}


def _swap_in(entering: Standing, inside: list[Standing], units: float) -> float:
    """Returns the units that are left over."""
    need, gain = entering.units, entering.worth
    leaving: list[Standing] = []
    loss, free = 0.0, units
    for candidate in reversed(inside):
        if free >= need - _EPS:
            break
        worth = candidate.worth if candidate.fixed == entering.fixed else inf
        if loss + worth < gain:
            leaving.append(candidate)
            loss += worth
            free += candidate.units
    if free < need - _EPS:
        return units
    for candidate in sorted(leaving, key=lambda one: (-one.worth, one.id)):
        if free - candidate.units >= need - _EPS:
            leaving.remove(candidate)
            free -= candidate.units
    gone = {candidate.id for candidate in leaving}
    inside[:] = [candidate for candidate in inside if candidate.id not in gone]
    inside.append(entering)
    return free - need
