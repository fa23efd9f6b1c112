"""Reduces long series to buckets with mean, minimum and maximum, so that no spike is lost."""

from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SeriesJson(TypedDict):
    """A series in the form of the REST API: lists, with null for NaN and infinities."""

    x: list[float]
    y: list[float | None]
    y_min: list[float | None]
    y_max: list[float | None]
    n: list[int]
    bucket: float
    total: int
    nonfinite: list[tuple[float, str]]  # x, and "nan", "inf" or "-inf"
    tail: NotRequired[float]


@dataclass(frozen=True, slots=True)
class Series:
    """One value for each bucket; all arrays have the same length, shape ``(buckets,)``.

    ``x`` is the first step (or time) of a bucket; ``y`` the mean of its finite values, NaN where it has none;
    ``n`` the count of finite values.  ``bucket`` is the width in the unit of x (1 where nothing was reduced),
    ``total`` the number of points in all buckets, ``nonfinite`` the first NaN, inf and -inf of each bucket.  From
    ``tail`` on, points come from attempts before the newest.
    """

    x: Floats | Ints
    y: Floats
    y_min: Floats
    y_max: Floats
    n: Ints
    bucket: float
    total: int
    nonfinite: list[tuple[float, str]] = field(default_factory=list)
    tail: float | None = None

    def as_json(self) -> SeriesJson:
        """The series in the form of the REST API: lists, with null for NaN and infinities."""
        series = SeriesJson(
            x=self.x.tolist(),
            y=nullable(self.y),
            y_min=nullable(self.y_min),
            y_max=nullable(self.y_max),
            n=self.n.tolist(),
            bucket=self.bucket,
            total=self.total,
            nonfinite=list(self.nonfinite),
        )
        if self.tail is not None:
            series["tail"] = self.tail
        return series


def nullable(values: Floats) -> list[float | None]:
    if np.isfinite(values).all():
        return list(values.tolist())
    return [value if np.isfinite(value) else None for value in values.tolist()]


def reduce_series(x: Ints, y: Floats, max_points: int, *, unit: float = 1.0, least_width: int = 1) -> Series:
    """Reduce points to at most ``max_points`` buckets whose edges are multiples of a power of two.

    A new point therefore changes only the last bucket.  Where x goes back, points keep their order, and buckets
    hold equal counts.

    Args:
        x: shape ``(points,)``, in whole units.
        unit: size of one unit of x in the result (0.001 turns milliseconds into seconds).
        least_width: width of the smallest bucket; widths are this times a power of two.
    """
    total = len(x)
    if total <= max_points and least_width == 1:
        return _raw(x, y, unit)
    rising = total < 2 or bool(np.all(x[1:] >= x[:-1]))
    starts, width = (
        _rising_buckets(x, max_points, least_width) if rising else (_counted_buckets(total, max_points), 1)
    )
    return _summed(x, y, starts, width, unit)


def _raw(x: Ints, y: Floats, unit: float) -> Series:
    finite = np.isfinite(y)
    clean = np.where(finite, y, np.nan)
    return Series(
        x=_outside(x, unit),
        y=clean,
        y_min=clean,
        y_max=clean,
        n=finite.astype(np.int64),
        bucket=unit,
        total=len(x),
        nonfinite=_nonfinite(x, y, np.arange(len(x)), unit) if not finite.all() else [],
    )


def _rising_buckets(x: Ints, max_points: int, least_width: int) -> tuple[Ints, int]:
    """Where each bucket starts, and their width; leaves out empty buckets."""
    first, last = int(x[0]), int(x[-1])
    width = least_width
    while last // width - first // width + 1 > max_points:
        width *= 2
    edges = np.arange(first // width, last // width + 1, dtype=np.int64) * width
    starts = np.searchsorted(x, edges, side="left")
    starts[0] = 0
    ends = np.append(starts[1:], len(x))
    return starts[ends > starts].astype(np.int64), width


def _counted_buckets(total: int, max_points: int) -> Ints:
    size = 1
    while -(-total // size) > max_points:
        size *= 2
    return np.arange(0, total, size, dtype=np.int64)


def _summed(x: Ints, y: Floats, starts: Ints, width: int, unit: float) -> Series:
    finite = np.isfinite(y)
    nonfinite: list[tuple[float, str]] = []
    if finite.all():
        count = np.diff(np.append(starts, len(y)))
        low, high, summed = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts), _sums(y, starts)
    else:
        nonfinite = _nonfinite(x, y, starts, unit)
        count = np.add.reduceat(finite.astype(np.int64), starts)
        low = np.minimum.reduceat(np.where(finite, y, np.inf), starts)
        high = np.maximum.reduceat(np.where(finite, y, -np.inf), starts)
        low, high = np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan)
        summed = _sums(np.where(finite, y, 0.0), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(count > 0, summed / count, np.nan)
    # Values near the largest double add up to infinity; their mean lies between minimum and maximum.
    mean = np.where(np.isinf(mean), low / 2 + high / 2, mean)
    return Series(_outside(x[starts], unit), mean, low, high, count, width * unit, len(x), nonfinite)


def _sums(y: Floats, starts: Ints) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.add.reduceat(y, starts)


def _nonfinite(x: Ints, y: Floats, starts: Ints, unit: float) -> list[tuple[float, str]]:
    """The first NaN, inf and -inf of every bucket, in order."""
    at = np.flatnonzero(~np.isfinite(y))
    kinds = np.where(np.isnan(y[at]), 0, np.where(y[at] > 0, 1, 2))
    keys = np.searchsorted(starts, at, side="right") * 3 + kinds
    _, first = np.unique(keys, return_index=True)
    first.sort()
    names = ("nan", "inf", "-inf")
    return [(_one_outside(int(x[at[i]]), unit), names[kinds[i]]) for i in first]


def _outside(x: Ints, unit: float) -> Floats | Ints:
    return x if unit == 1.0 else x.astype(np.float64) * unit


def _one_outside(x: int, unit: float) -> float:
    return x if unit == 1.0 else x * unit
