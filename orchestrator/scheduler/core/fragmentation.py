"""How much free capacity a request of the recent mix could not use, and what a placement adds to that.

The measure is that of FGD (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent", USENIX ATC'23, section 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

_FULL = 1000  # thousandths of a device
FIT_WEIGHT = 0.3  # the weight of best fit relative to the growth of fragmentation, both in devices


@dataclass(frozen=True, slots=True)
class Ask:
    """A request shape and its frequency; the parts of a mix add up to 1."""

    gpus: int
    milli: int  # thousandths of each device; 1000 is a whole one
    part: float
    cpu_milli: int = 0


def lost_milli(free: Sequence[int], mix: Sequence[Ask], cpu_milli: int | None = None) -> float:
    """Expected idle thousandths of a node that a request drawn from the mix could not use.

    Args:
        free: free thousandths of each device, in any order.
        cpu_milli: free CPU; None if it never runs out.
    """
    idle = sum(free)
    if not idle:
        return 0.0
    whole, largest = sum(amount == _FULL for amount in free), max(free)
    lost = 0.0
    for ask in mix:
        if (cpu_milli is not None and ask.cpu_milli > cpu_milli) or ask.gpus == 0:
            lost += ask.part * idle
        elif ask.milli >= _FULL or ask.gpus > 1:
            fits = whole >= ask.gpus
            lost += ask.part * (sum(amount for amount in free if amount < _FULL) if fits else idle)
        else:
            fits = largest >= ask.milli
            lost += ask.part * (sum(amount for amount in free if amount < ask.milli) if fits else idle)
    return lost


def placement_score(growth_milli: float, rest_part: float) -> float:
    """A score, smaller is better, from the growth of lost capacity and the node's remaining free share (0..1)."""
    return growth_milli / _FULL + FIT_WEIGHT * rest_part
