"""Which step an attempt had reached at a time, and when it reported a step."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orchestrator.store.metrics.journal import Names, lengths_after, read_state
from orchestrator.store.metrics.stored_columns import read_column

_RECENT_POINTS = 10_000
_MOST_POINTS = 100_000  # of a series that tells the steps of a whole attempt, where there is one with fewer


def step_at(folder: Path, attempt: int, at_s: float, *, read_within_s: float = 0.0) -> int | None:
    """The step of an attempt at a time, from the points around it; None without points.

    Interpolates between two points and rounds down: lines are read four times a second, so several steps share a
    time.  A line without a time gets the time of its reading, so its step was reached before that.

    Args:
        read_within_s: longest delay between writing and reading a line; a point that follows within this time had
            been reached already.
    """
    journal_names, counts = _series_of(folder, attempt)
    if not counts:
        return None
    series, count = max(counts.items(), key=lambda item: item[1])
    column = read_column(folder, journal_names, attempt, series, max(0, count - _RECENT_POINTS), count)
    ms, step = column.ms, column.step
    order = np.argsort(ms, kind="stable")
    ms, step = ms[order], step[order]
    last_of_time = np.flatnonzero(np.diff(ms, append=ms[-1] + 1))
    times, steps = ms[last_of_time], step[last_of_time]
    between = np.interp(at_s * 1000, times, steps)
    after = int(np.searchsorted(times, at_s * 1000))
    if after == len(times) or times[after] - at_s * 1000 > read_within_s * 1000:
        return int(between)
    # Times closer together than readings come from the run itself, and are exact.
    own_times = after > 0 and times[after] - times[after - 1] < read_within_s * 1000 / 2
    return int(between) if own_times else int(np.ceil(between))


def time_of(folder: Path, attempt: int, step: int) -> float | None:
    """When an attempt reported the point nearest to a step, in seconds since 1970; None without points."""
    journal_names, counts = _series_of(folder, attempt)
    if not counts:
        return None
    series, count = max(counts.items(), key=lambda item: item[1])
    column = read_column(folder, journal_names, attempt, series, 0, count)
    nearest = int(np.argmin(np.abs(column.step - step)))
    return float(column.ms[nearest]) / 1000


def steps_at(folder: Path, attempt: int, at_s: Sequence[float]) -> list[int | None]:
    """The step that an attempt had reached at each of these times; None before its first point."""
    journal_names, counts = _series_of(folder, attempt)
    if not counts:
        return [None] * len(at_s)
    few = {series: count for series, count in counts.items() if count <= _MOST_POINTS}
    series = max(few, key=few.__getitem__) if few else min(counts, key=counts.__getitem__)
    column = read_column(folder, journal_names, attempt, series, 0, counts[series])
    order = np.argsort(column.ms, kind="stable")
    ms, step = column.ms[order], column.step[order]
    places = np.searchsorted(ms, np.asarray(at_s) * 1000, side="right") - 1
    return [int(step[place]) if place >= 0 else None for place in places]


def _series_of(folder: Path, attempt: int) -> tuple[Names, dict[int, int]]:
    """The names, and the number of points of each series of an attempt that has any."""
    journal_names, records = read_state(folder)
    lengths = lengths_after(records, journal_names)
    return journal_names, {
        series: count for (number, series), count in lengths.items() if number == attempt and count
    }
