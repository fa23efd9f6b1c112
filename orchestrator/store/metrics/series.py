"""Reads metric columns: whole series in buckets, points since a seq, and last values."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict, cast

import numpy as np

from orchestrator.store.metrics.buckets import Floats, Ints, Series, nullable, reduce_series
from orchestrator.store.metrics.journal import (
    cut_records,
    last_seq,
    lengths_after,
    read_names,
    read_records,
    read_state,
)
from orchestrator.store.metrics.stored_columns import StoredColumn, columns_of, joined, read_column

POINTS_A_FRAME = 2_000


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
        columns = columns_of(folder, journal_names, number, lengths)
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
            column = read_column(folder, journal_names, attempt, number, first, min(count, first + most))
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
        column = read_column(folder, journal_names, attempt, series, count - 1, count)
        if len(value := column.value):
            values[journal_names.series[series]] = LastValue(
                int(column.step[0]), int(column.ms[0]) / 1000, float(value[0])
            )
    return values


def stored_seq(folder: Path) -> int:
    """The number of points that the job has stored."""
    return last_seq(read_records(folder))


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
        column = read_column(folder, journal_names, attempt, series, first, last)
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


def _one_series(
    columns: list[StoredColumn],
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
            joined([column.ms for column in columns]),
            joined([column.value for column in columns]),
        )
        unit, tail = 0.001, None
    if start is not None or end is not None:
        low = -np.inf if start is None else start / unit
        high = np.inf if end is None else end / unit
        inside = (place >= low) & (place <= high)
        place, value = place[inside], value[inside]
    return replace(reduce_series(place, value, max_points, unit=unit), tail=tail)


def _tail(columns: list[StoredColumn], place: Ints) -> float | None:
    """The first step that only earlier attempts reached; None where the newest is ahead of them."""
    if len(columns) == 1 or not len(newest := columns[-1].step):
        return None
    beyond = place[place > newest.max()]
    return int(beyond.min()) if len(beyond) else None


def _by_step(columns: list[StoredColumn]) -> tuple[Ints, Floats]:
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
