"""What earlier start ranges teach the next ones."""

from collections.abc import Iterable

FEWEST = 20  # kept or broken ranges below which nothing is learned
_TAIL = 25  # one in so many waits was shorter, and one longer, than the next range allows


def learn_start_errors(errors: Iterable[float]) -> tuple[float, float] | None:
    """The spread of real wait / foreseen wait of the last few hundred starts, for ``State.start_errors``.

    None while too few are known.
    """
    ordered = sorted(errors)
    if len(ordered) < FEWEST:
        return None
    out = len(ordered) // _TAIL
    return ordered[out], ordered[-1 - out]
