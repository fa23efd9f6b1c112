"""Drawings of compared jobs without a script: one quantity against another, and many on parallel axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from berth.shared import words
from dashboard.parts.job_columns import plain
from dashboard.parts.rows import recorded
from orchestrator.models import Job

Quantities = Mapping[str, Sequence[float | None]]  # for each job, in order; None: it has no such number
WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 96, 16, 36
MOST_AXES = 8
TICKS = 4
DECADES = 50  # a quantity that spans a factor of this is drawn by its logarithm


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """Places of the values between 0 and 1, and a few values to read them by."""

    name: str
    places: list[float | None]
    ticks: list[Tick]

    @property
    def ends(self) -> list[Tick]:
        """The first and the last tick, below and above an upright axis."""
        return [Tick(HEIGHT - BOTTOM + 14, self.ticks[0].text), Tick(TOP - 4, self.ticks[-1].text)]


@dataclass(frozen=True, slots=True)
class Dot:
    job: int  # its place among the compared ones
    x: float
    y: float
    said: str


@dataclass(slots=True)
class Scatter:
    x: Axis
    y: Axis
    dots: list[Dot] = field(default_factory=list)

    @property
    def x_ticks(self) -> list[Tick]:
        return [Tick(across_px(tick.at), tick.text) for tick in self.x.ticks]

    @property
    def y_ticks(self) -> list[Tick]:
        return [Tick(up_px(tick.at), tick.text) for tick in self.y.ticks]


@dataclass(frozen=True, slots=True)
class Parallel:
    """``places`` are the axes' x, ``lines`` a path for each job; a value that is missing leaves a gap."""

    axes: list[tuple[float, Axis]]
    lines: list[str]
    width: int


def quantities_of(jobs: Sequence[Job]) -> dict[str, list[float | None]]:
    """Numbers in which the jobs differ: arguments first, then last values of metrics; NaN counts as none."""
    found: dict[str, list[float | None]] = {}
    for prefix, rows in (("", [job.arguments for job in jobs]), ("last ", [job.last_values for job in jobs])):
        for name in dict.fromkeys(name for row in rows for name in row):
            numbers = [_finite(row.get(name)) for row in rows]
            if len({number for number in numbers if number is not None}) > 1:
                found[f"{prefix}{name}"] = numbers
    return found


def _finite(value: object) -> float | None:
    number = None if isinstance(value, str) and value not in {"NaN"} else recorded(value)
    return number if number is not None and math.isfinite(number) else None


def axis(name: str, values: Sequence[float | None]) -> Axis:
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    is_wide = low > 0 and high / low >= DECADES
    scale = math.log10 if is_wide else float
    start, span = scale(low), scale(high) - scale(low) or 1.0
    places = [None if value is None else (scale(value) - start) / span for value in values]
    ticks = []
    for number in range(TICKS):
        at = number / (TICKS - 1)
        value = 10 ** (start + at * span) if is_wide else start + at * span
        ticks.append(Tick(at, words.value(float(f"{value:.3g}"))))
    return Axis(name, places, ticks)


def scatter(quantities: Quantities, x: str, y: str, names: Sequence[str]) -> Scatter | None:
    """One dot for each job that has both numbers; None if there is no such job."""
    if x not in quantities or y not in quantities:
        return None
    drawn = Scatter(axis(x, quantities[x]), axis(y, quantities[y]))
    for job, (across, up) in enumerate(zip(drawn.x.places, drawn.y.places, strict=True)):
        if across is not None and up is not None:
            said = (
                f"{names[job]}: {x} {words.value(quantities[x][job])}, {y} {words.value(quantities[y][job])}"
            )
            drawn.dots.append(Dot(job, across_px(across), up_px(up), said))
    return drawn if drawn.dots else None


def across_px(place: float) -> float:
    return round(LEFT + place * (WIDTH - LEFT - RIGHT), 1)


def up_px(place: float) -> float:
    return round(HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM), 1)


def parallel(quantities: Quantities) -> Parallel | None:
    """Axes for the quantities in which the jobs differ; None with fewer than two."""
    chosen = list(quantities)[: MOST_AXES - 2]
    results = [name for name in quantities if name.startswith("last ") and name not in chosen]
    chosen += results[: MOST_AXES - len(chosen)]
    if len(chosen) < 2:
        return None
    axes = [axis(name, quantities[name]) for name in chosen]
    step = max(104, (WIDTH - 2 * LEFT) / (len(axes) - 1))
    placed = [(round(LEFT + number * step, 1), each) for number, each in enumerate(axes)]
    count = len(axes[0].places)
    lines = [_path([(x, each.places[job]) for x, each in placed]) for job in range(count)]
    return Parallel(placed, lines, round(placed[-1][0] + LEFT))


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    parts, draws = [], False
    for x, place in points:
        if place is not None:
            parts.append(f"{'L' if draws else 'M'}{x} {up_px(place)}")
        draws = place is not None
    return "".join(parts)


MOST_TELLING = 2


def apart(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """What tells jobs of one name apart: the first arguments in which they differ, where that names each one."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    differing = [name for name in names if len({str(row.get(name)) for row in rows}) > 1][:MOST_TELLING]
    told = [", ".join(f"{name} {plain(row[name])}" for name in differing if name in row)[:32] for row in rows]
    return [text if told.count(text) == 1 else "" for text in told]
