"""A job as one self-contained file: curves as drawings, plan, history; to print, send or archive."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from berth import words
from berth.metric_names import in_loss_order
from orchestrator.store.metrics import series
from orchestrator.store.metrics.buckets import Series

WIDTH, HEIGHT = 640, 180  # of a curve's drawing, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 8, 22
MOST_CURVES = 24
POINTS = 320
MOST_TICKS = 4


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One series as paths of an SVG of ``WIDTH`` by ``HEIGHT``."""

    name: str
    line: str
    band: str  # minimum to maximum of each bucket; empty if no bucket holds two points
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    first: str
    last: str
    lowest: str
    highest: str
    points: int
    nonfinite: int


def draw_curves(folder: Path, until_seq: int) -> list[Curve]:
    """The series of a job, losses first, at most ``MOST_CURVES``."""
    known = series.series_names(folder)
    losses = in_loss_order(known)
    names = [*losses, *sorted(set(known).difference(losses))]
    found = series.read_series(folder, names[:MOST_CURVES], max_points=POINTS, until_seq=until_seq)
    newest = series.last_values(folder, until_seq=until_seq)
    curves = (_draw(name, found[name], newest[name].value) for name in names[:MOST_CURVES] if name in found)
    return [curve for curve in curves if curve is not None]


def _draw(name: str, one: Series, newest: float) -> Curve | None:
    facts = one.as_json()
    rows = [
        (x, y, low, high)
        for x, y, low, high in zip(facts["x"], facts["y"], facts["y_min"], facts["y_max"], strict=True)
        if y is not None and low is not None and high is not None
    ]
    if not rows:
        return None
    xs, ys = [row[0] for row in rows], [row[1] for row in rows]
    lowest, highest = min(row[2] for row in rows), max(row[3] for row in rows)
    to_x = _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    to_y = _Scale(lowest, highest, HEIGHT - BOTTOM, TOP)
    line = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y, _, _ in rows)
    edge = [f"{to_x(row[0]):.1f},{to_y(row[3]):.1f}" for row in rows]
    edge += [f"{to_x(row[0]):.1f},{to_y(row[2]):.1f}" for row in reversed(rows)]
    return Curve(
        name=name,
        line=line if len(rows) > 1 else f"{line} {to_x(xs[0]) + 2:.1f},{to_y(ys[0]):.1f}",
        band=" ".join(edge) if any(row[2] != row[3] for row in rows) else "",
        x_ticks=[Tick(to_x(at), words.value(at)) for at in ticks(min(xs), max(xs))],
        y_ticks=[Tick(to_y(at), words.value(at)) for at in ticks(lowest, highest)],
        first=words.value(ys[0]),
        last=words.value(newest),
        lowest=words.value(lowest),
        highest=words.value(highest),
        points=int(facts["total"]),
        nonfinite=len(facts["nonfinite"]),
    )


class _Scale:
    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.span = low, (high - low) or 1.0
        self.start, self.length = start, end - start
        self.is_flat = high == low

    def __call__(self, value: float) -> float:
        if self.is_flat:
            return self.start + self.length / 2
        return self.start + self.length * (value - self.low) / self.span


def ticks(low: float, high: float) -> Sequence[float]:
    """At most ``MOST_TICKS`` + 1 round numbers from ``low`` to ``high``; one number if they are equal."""
    if high <= low:
        return [low]
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]
