"""The few statistics that the tables need."""

import math
import statistics
from collections.abc import Sequence

median = statistics.median


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    """Of a sample: how many, least, median, 95 % and most."""
    return {
        "n": len(values),
        "min": round(min(values), digits),
        "median": round(median(values), digits),
        "p95": round(percentile(values, 95), digits),
        "max": round(max(values), digits),
    }
