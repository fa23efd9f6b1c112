"""Reads metric columns: whole series in buckets, points since a seq, and last values."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.metrics.buckets import Floats, Ints, Series, nullable, reduce_series
from orchestrator.store.metrics.journal import (
    COLUMN,
    Names,
    column_path,
    cut_records,
    last_seq,
    lengths_after,
    read_names,
    read_records,
    read_state,
)

POINTS_A_FRAME = 2_000
RECENT_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class LastValue:
    step: int
    time_s: float
    value: float  # may be NaN or infinite


class PointsJson(TypedDict, total=False):
    """Points of one series in a page; buckets have the last four fields as well."""

    x: list[float]  # steps
    t: list[float]  # seconds since 1970
    y: list[float | None]
    nonfinite: list[tuple[float, str]]  # step, and "nan", "inf" or "-inf"
    y_min: list[float | None]
    y_max: list[float | None]
    n: list[int]


@dataclass(frozen=True, slots=True)
class PointsPage:
    """The points stored after a seq.

    The next page starts at ``seq``.  With ``gap``, ``after_seq`` lies beyond the last point (the columns were cut
    back): read the whole series again.  With ``reduced``, points are buckets.
    """

    seq: int
    points: dict[str, PointsJson]
    reduced: bool = False
    gap: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """Points of one segment of a column in stored order; fields are unpacked on access."""

    records: NDArray[np.void]
    base_step: int
    base_ms: int  # since 1970

    @property
    def step(self) -> Ints:
        step = self.records["step"].astype(np.int64)
        return step + self.base_step if self.base_step else step

    @property
    def ms(self) -> Ints:
        return self.records["ms"].astype(np.int64) + self.base_ms

    @property
    def value(self) -> Floats:
        return np.ascontiguousarray(self.records["value"], np.float64)


@dataclass(frozen=True, slots=True)
class _Column:
    """The points of one series and attempt."""

    parts: list[_Part]

    @property
    def step(self) -> Ints:
        return _joined([part.step for part in self.parts])

    @property
    def ms(self) -> Ints:
        return _joined([part.ms for part in self.parts])

    @property
    def value(self) -> Floats:
        return _joined([part.value for part in self.parts])


def read_series(
    folder: Path,
    names: Collection[str] | None = None,
    x: Literal["step", "time"] = "step",
    start: float | None = None,
    end: float | None = None,
    max_points: int = 500,
    *,
    until_seq: int | None = None,
) -> dict[str, Series]:
    """The series of a job, each in at most ``max_points`` buckets; leaves out unknown names.

    Args:
        folder: the job's metrics folder.
        x: ``time`` is seconds since 1970, and shows the time between attempts.
        start, end: the window, both included, in the unit of x.

    Steps that were repeated after a resume appear once, from the newest attempt.  Steps that go back within an
    attempt keep their order.
    """
    journal_names, records = read_state(folder, until_seq=until_seq)
    lengths = lengths_after(records, journal_names)
    series_by_name = {}
    for number, name in enumerate(journal_names.series):
        if names is not None and name not in names:
            continue
        columns = _columns(folder, journal_names, number, lengths)
        if columns:
            series_by_name[name] = _one_series(columns, x, start, end, max_points)
    return series_by_name


@dataclass(frozen=True, slots=True)
class Block:
    """Stored points of one series and attempt, in their order; arrays of shape ``(points,)``."""

    name: str
    attempt: int
    step: Ints
    ms: Ints  # since 1970
    value: Floats


def read_points(
    folder: Path, names: Collection[str] | None = None, *, until_seq: int | None = None, most: int = 100_000
) -> Iterator[Block]:
    """Every stored point, including those that a later attempt repeated, in blocks of at most ``most``."""
    journal_names, records = read_state(folder, until_seq=until_seq)
    for (attempt, number), count in sorted(
        lengths_after(records, journal_names).items(), key=lambda item: item[0][::-1]
    ):
        if names is not None and journal_names.series[number] not in names:
            continue
        for first in range(0, count, most):
            column = _read(folder, journal_names, attempt, number, first, min(count, first + most))
            yield Block(journal_names.series[number], attempt, column.step, column.ms, column.value)


def series_names(folder: Path) -> list[str]:
    """The names of all series, in order of first appearance."""
    return read_names(folder).series


def series_lengths(folder: Path, *, until_seq: int | None = None) -> dict[str, int]:
    """The number of stored points of every series, over all attempts; reads no column."""
    journal_names, records = read_state(folder, until_seq=until_seq)
    lengths: dict[str, int] = {}
    for (_, series), count in lengths_after(records, journal_names).items():
        name = journal_names.series[series]
        lengths[name] = lengths.get(name, 0) + count
    return lengths


def last_values(folder: Path, *, until_seq: int | None = None) -> dict[str, LastValue]:
    """The newest point of every series."""
    journal_names, records = read_state(folder, until_seq=until_seq)
    lengths = lengths_after(records, journal_names)
    newest: dict[int, int] = {}
    for attempt, series in lengths:
        newest[series] = max(attempt, newest.get(series, 0))
    values = {}
    for series, attempt in newest.items():
        count = lengths[attempt, series]
        column = _read(folder, journal_names, attempt, series, count - 1, count)
        if len(value := column.value):
            values[journal_names.series[series]] = LastValue(
                int(column.step[0]), int(column.ms[0]) / 1000, float(value[0])
            )
    return values


def stored_seq(folder: Path) -> int:
    """The number of points that the job has stored."""
    return last_seq(read_records(folder))


def step_at(folder: Path, attempt: int, at_s: float, *, read_within_s: float = 0.0) -> int | None:
    """The step of an attempt at a time, from the points around it; None without points.

    Interpolates between two points and rounds down: lines are read four times a second, so several steps share a
    time.  A line without a time gets the time of its reading, so its step was reached before that.

    Args:
        read_within_s: longest delay between writing and reading a line; a point that follows within this time had
            been reached already.
    """
    journal_names, records = read_state(folder)
    counts = {
        series: count
        for (number, series), count in lengths_after(records, journal_names).items()
        if number == attempt
    }
    if not any(counts.values()):
        return None
    series, count = max(counts.items(), key=lambda item: item[1])
    column = _read(folder, journal_names, attempt, series, max(0, count - RECENT_POINTS), count)
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
    journal_names, records = read_state(folder)
    counts = {
        series: count
        for (number, series), count in lengths_after(records, journal_names).items()
        if number == attempt and count
    }
    if not counts:
        return None
    series, count = max(counts.items(), key=lambda item: item[1])
    column = _read(folder, journal_names, attempt, series, 0, count)
    nearest = int(np.argmin(np.abs(column.step - step)))
    return float(column.ms[nearest]) / 1000


def read_since(
    folder: Path, after_seq: int, limit: int = POINTS_A_FRAME, *, until_seq: int | None = None
) -> PointsPage:
    """Every point stored after ``after_seq``, exactly once over all pages; buckets above ``limit`` points.

    ``points`` has, by name, ``x`` (step), ``t`` (seconds since 1970) and ``y`` (null for NaN and infinities) in
    stored order; buckets also have ``y_min``, ``y_max``, ``n`` and ``nonfinite``.
    """
    journal_names, records = read_state(folder, until_seq=until_seq)
    seq = last_seq(records)
    if after_seq >= seq:
        return PointsPage(seq, {}, gap=after_seq > seq)
    before = lengths_after(cut_records(records, after_seq), journal_names)
    spans = {
        place: (before.get(place, 0), count)
        for place, count in sorted(lengths_after(records, journal_names).items())
        if count > before.get(place, 0)
    }
    reduced = seq - max(0, after_seq) > limit
    points_each = max(1, limit // len({series for _, series in spans}))
    points: dict[str, PointsJson] = {}
    for (attempt, series), (first, last) in spans.items():
        column = _read(folder, journal_names, attempt, series, first, last)
        step, ms, value = column.step, column.ms, column.value
        part = _reduced_points(step, ms, value, points_each) if reduced else _plain_points(step, ms, value)
        _extend(points.setdefault(journal_names.series[series], {}), part)
    return PointsPage(seq, points, reduced=reduced)


def _plain_points(step: Ints, ms: Ints, value: Floats) -> PointsJson:
    points = PointsJson(x=step.tolist(), t=(ms / 1000).tolist(), y=nullable(value))
    at = np.flatnonzero(~np.isfinite(value))
    if len(at):
        points["nonfinite"] = [(int(step[i]), _nonfinite_name(float(value[i]))) for i in at]
    return points


def _nonfinite_name(value: float) -> str:
    return "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"


def _reduced_points(step: Ints, ms: Ints, value: Floats, max_points: int) -> PointsJson:
    buckets = reduce_series(step, value, max_points).as_json()
    x = buckets["x"]
    at = np.searchsorted(step, x) if np.all(step[1:] >= step[:-1]) else np.zeros(len(x), int)
    return PointsJson(
        x=x,
        t=(ms[np.minimum(at, len(ms) - 1)] / 1000).tolist(),
        y=buckets["y"],
        nonfinite=buckets["nonfinite"],
        y_min=buckets["y_min"],
        y_max=buckets["y_max"],
        n=buckets["n"],
    )


def _extend(points: PointsJson, part: PointsJson) -> None:
    columns = cast("dict[str, list[object]]", points)
    for key, values in cast("dict[str, list[object]]", part).items():
        columns.setdefault(key, []).extend(values)


def _columns(
    folder: Path, journal_names: Names, series: int, lengths: dict[tuple[int, int], int]
) -> list[_Column]:
    """One column for each attempt with points, in order of attempts."""
    return [
        _read(folder, journal_names, attempt, series, 0, count)
        for (attempt, number), count in sorted(lengths.items())
        if number == series and count
    ]


def _read(folder: Path, journal_names: Names, attempt: int, series: int, first: int, last: int) -> _Column:
    """The points ``[first, last)`` of one column."""
    parts = []
    started_ms = round(journal_names.started_at.get(attempt, 0.0) * 1000)
    for segment, (base_step, base_ms) in enumerate(journal_names.bases(attempt, series)):
        count, records = _read_records(column_path(folder, attempt, series, segment), first, last)
        parts.append(_Part(records, base_step, base_ms + started_ms))
        first, last = max(0, first - count), max(0, last - count)
    return _Column(parts)


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _read_records(path: Path, first: int, last: int) -> tuple[int, NDArray[np.void]]:
    """The number of points of a segment, and its points within ``[first, last)``.

    Reads instead of mapping: page faults cost three times as much as the copy.
    """
    try:
        with path.open("rb", buffering=0) as file:
            count = os.fstat(file.fileno()).st_size // COLUMN.itemsize
            wanted = max(0, min(last, count) - first)
            return count, np.fromfile(file, COLUMN, wanted, offset=first * COLUMN.itemsize if wanted else 0)
    except FileNotFoundError:
        return 0, np.empty(0, COLUMN)


def _one_series(
    columns: list[_Column],
    x: Literal["step", "time"],
    start: float | None,
    end: float | None,
    max_points: int,
) -> Series:
    if x == "step":
        place, value = _by_step(columns)
        unit = 1.0
        tail = _tail(columns, place)
    else:
        place, value = (
            _joined([column.ms for column in columns]),
            _joined([column.value for column in columns]),
        )
        unit, tail = 0.001, None
    if start is not None or end is not None:
        low = -np.inf if start is None else start / unit
        high = np.inf if end is None else end / unit
        inside = (place >= low) & (place <= high)
        place, value = place[inside], value[inside]
    return replace(reduce_series(place, value, max_points, unit=unit), tail=tail)


def _tail(columns: list[_Column], place: Ints) -> float | None:
    """The first step that only earlier attempts reached; None where the newest is ahead of them."""
    if len(columns) == 1 or not len(newest := columns[-1].step):
        return None
    beyond = place[place > newest.max()]
    return int(beyond.min()) if len(beyond) else None


def _by_step(columns: list[_Column]) -> tuple[Ints, Floats]:
    """Points of all attempts by step; a repeated step is taken from the latest attempt alone."""
    if len(columns) == 1:
        return columns[0].step, columns[0].value
    chosen: list[tuple[Ints, Floats]] = []
    repeated: list[tuple[int, int]] = []
    rising = True
    for column in reversed(columns):
        step = column.step
        if not len(step):
            continue
        fresh = np.ones(len(step), bool)
        for first, last in repeated:
            fresh &= (step < first) | (step > last)
        chosen.append((step[fresh], column.value[fresh]))
        repeated.append((int(step.min()), int(step.max())))
        rising = rising and bool(np.all(step[1:] >= step[:-1]))
    if not chosen:
        return columns[0].step, columns[0].value
    step = np.concatenate([step for step, _ in reversed(chosen)])
    value = np.concatenate([value for _, value in reversed(chosen)])
    if rising:
        # The tail of an attempt that the next one has not reached yet goes to the end.
        order = np.argsort(step, kind="stable")
        step, value = step[order], value[order]
    return step, value
