"""A line chart made of braille dots: 2 x 4 dots a character, smallest and largest value of each bucket kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # row by row, left and right
_BLANK = 0x2800
LABEL_WIDTH = 9


@dataclass(frozen=True, slots=True)
class ChartBucket:
    """One bucket of a series that has finite values."""

    x: float
    low: float
    mean: float
    high: float


def buckets_of(
    x: Sequence[float],
    y: Sequence[float | None],
    y_min: Sequence[float | None],
    y_max: Sequence[float | None],
) -> list[ChartBucket]:
    """The buckets of a series that have finite values."""
    return [
        ChartBucket(at, low, mean, high)
        for at, mean, low, high in zip(x, y, y_min, y_max, strict=True)
        if mean is not None and low is not None and high is not None
    ]


def draw(buckets: Sequence[ChartBucket], *, width: int, height: int) -> list[str]:
    """``height`` lines of ``width`` characters and one for the x axis; the left ones are the labels of y."""
    columns, rows = 2 * max(1, width - LABEL_WIDTH - 1), 4 * max(1, height)
    if not buckets:
        return [" " * width] * (height + 1)
    first, last = buckets[0].x, buckets[-1].x
    bottom, top = min(each.low for each in buckets), max(each.high for each in buckets)
    dots: set[tuple[int, int]] = set()
    before: tuple[int, int] | None = None
    for each in buckets:
        column = _place(each.x, first, last, columns)
        row = _place(each.mean, bottom, top, rows)
        low, high = _place(each.low, bottom, top, rows), _place(each.high, bottom, top, rows)
        dots.update((column, at) for at in range(low, high + 1))
        dots.update(_line(before, (column, row)))
        before = (column, row)
    lines = [_line_of_text(dots, line, rows, columns) for line in range(height)]
    labels = _labels(bottom, top, height)
    axis = f"{_short(first)}{_short(last):>{max(1, columns // 2 - len(_short(first)))}}"
    return [
        f"{label:>{LABEL_WIDTH}} {line}" for label, line in zip([*labels, ""], [*lines, axis], strict=True)
    ]


def _place(value: float, low: float, high: float, count: int) -> int:
    """Scale a value to one of ``count`` dots from ``low`` to ``high``; the middle if both are equal."""
    if high <= low:
        return (count - 1) // 2
    return min(count - 1, max(0, round((value - low) / (high - low) * (count - 1))))


def _line(start: tuple[int, int] | None, end: tuple[int, int]) -> set[tuple[int, int]]:
    if start is None:
        return {end}
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return {
        (
            round(start[0] + (end[0] - start[0]) * step / steps),
            round(start[1] + (end[1] - start[1]) * step / steps),
        )
        for step in range(steps + 1)
    }


def _line_of_text(dots: set[tuple[int, int]], line: int, rows: int, columns: int) -> str:
    """The characters of a line, counted from the top; dots count rows from the bottom."""
    characters = []
    for left in range(0, columns, 2):
        bits = 0
        for down in range(4):
            for right in range(2):
                if (left + right, rows - 1 - (4 * line + down)) in dots:
                    bits |= _DOTS[down][right]
        characters.append(chr(_BLANK + bits))
    return "".join(characters)


def _labels(bottom: float, top: float, height: int) -> list[str]:
    """Labels: the largest value at the top, the smallest at the bottom, the middle one if there is room."""
    labels = [""] * height
    labels[-1] = _short(bottom)
    labels[0] = _short(top)
    if height >= 5 and top > bottom:
        labels[height // 2] = _short(bottom + (top - bottom) * (1 - (height // 2 + 0.5) / height))
    return labels


def _short(value: float) -> str:
    if value == 0 or (1e-3 <= abs(value) < 1e6):
        return f"{value:,.0f}" if value == math.floor(value) or abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:.2e}"
