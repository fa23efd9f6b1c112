"""A job as one self-contained file: curves as drawings, plan, history; to print, send or archive."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from berth.shared import words
from berth.shared.metric_names import in_loss_order
from orchestrator.store.metrics import series
from orchestrator.store.metrics.buckets import Series

WIDTH, HEIGHT = 640, 180  # of a curve's drawing, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 8, 22
MOST_CURVES = 24
POINTS = 320
MOST_TICKS = 4
MOST_TOGETHER = 12  # metrics of several jobs
COLOURS = 8  # of the lines; the others are grey


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
    marks: list[Tick] = field(default_factory=list)  # where notes are


@dataclass(frozen=True, slots=True)
class Together:
    """One metric of several jobs in one drawing."""

    name: str
    lines: list[tuple[int, str]]  # colour from 1, and points; 0: grey
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def draw_curves(folder: Path, until_seq: int, notes: Sequence[tuple[int, str]] = ()) -> list[Curve]:
    """The series of a job, losses first, at most ``MOST_CURVES``.

    Args:
        notes: step and text of what is to be marked.
    """
    known = series.series_names(folder)
    losses = in_loss_order(known)
    names = [*losses, *sorted(set(known).difference(losses))]
    found = series.read_series(folder, names[:MOST_CURVES], max_points=POINTS, until_seq=until_seq)
    newest = series.last_values(folder, until_seq=until_seq)
    curves = (
        _draw(name, found[name], newest[name].value, notes) for name in names[:MOST_CURVES] if name in found
    )
    return [curve for curve in curves if curve is not None]


def draw_together(jobs: Sequence[tuple[Path, int]], most: int = MOST_TOGETHER) -> list[Together]:
    """The metrics that most of these jobs have, losses first: a line for each job, in the jobs' order.

    Args:
        jobs: the folder of each job's metrics and how many of its points count.
    """
    counts = Counter(name for folder, seq in jobs if seq for name in series.series_names(folder))
    losses = in_loss_order(counts)
    shared = sorted(set(counts).difference(losses), key=lambda name: (-counts[name], name))
    names = [*losses, *shared][:most]
    found = [
        series.read_series(folder, names, max_points=POINTS, until_seq=seq) if seq else {}
        for folder, seq in jobs
    ]
    drawn = (_draw_together(name, [one.get(name) for one in found]) for name in names)
    return [each for each in drawn if each is not None]


def _draw_together(name: str, found: Sequence[Series | None]) -> Together | None:
    of_jobs = [[] if one is None else _rows_of(one) for one in found]
    rows = [row for each in of_jobs for row in each]
    if not rows:
        return None
    xs, ys = [row[0] for row in rows], [row[1] for row in rows]
    to_x = _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    to_y = _Scale(min(ys), max(ys), HEIGHT - BOTTOM, TOP)
    return Together(
        name=name,
        lines=[
            (
                place if place <= COLOURS else 0,
                " ".join(f"{to_x(row[0]):.1f},{to_y(row[1]):.1f}" for row in each),
            )
            for place, each in enumerate(of_jobs, 1)
            if each
        ],
        x_ticks=[Tick(to_x(at), words.value(at)) for at in ticks(min(xs), max(xs))],
        y_ticks=[Tick(to_y(at), words.value(at)) for at in ticks(min(ys), max(ys))],
    )


def _rows_of(one: Series) -> list[tuple[float, float, float, float]]:
    """Place, mean, lowest and highest of each bucket with numbers."""
    facts = one.as_json()
    return [
        (x, y, low, high)
        for x, y, low, high in zip(facts["x"], facts["y"], facts["y_min"], facts["y_max"], strict=True)
        if y is not None and low is not None and high is not None
    ]


def _draw(name: str, one: Series, newest: float, notes: Sequence[tuple[int, str]]) -> Curve | None:
    facts, rows = one.as_json(), _rows_of(one)
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
        marks=[Tick(to_x(step), text) for step, text in notes if min(xs) <= step <= max(xs)],
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
