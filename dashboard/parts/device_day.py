"""A device's last 24 hours as drawings: readings, who held it, and what went wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict
from urllib.parse import quote

import numpy as np
from django.conf import settings
from django.contrib.auth.models import User
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from numpy.typing import NDArray

from berth.shared import words
from dashboard.parts.wall import colour_classes, program
from orchestrator.facts.events import Happened
from orchestrator.live.readings import DeviceEntry
from orchestrator.models import Device, DeviceSpan, Job, JobEvent, Lease, Use
from orchestrator.store.metrics.buckets import Series
from orchestrator.store.metrics.device_history import DeviceHistory

DAY = timedelta(hours=24)
WIDTH, HEIGHT = 600, 100  # of a drawing, in SVG units
POINTS = 300
TICK_H = 4
ROW_PX = 26
ERRORS = (Happened.DEVICE_ERROR, Happened.DEVICE_FAULTY, Happened.SLOWED_DOWN)
MOST_ERRORS = 20
# Name of the measure, title, unit, and factor to the unit.
CHARTS = (
    ("memory_used_bytes", gettext_lazy("Memory in use"), "GiB", 1 / words.GIB),
    ("utilization_percent", pgettext_lazy("of a device", "Use"), "%", 1.0),
    ("temperature_c", gettext_lazy("Temperature"), "°C", 1.0),
    ("power_w", gettext_lazy("Power"), "W", 1.0),
)


@dataclass(frozen=True, slots=True)
class Chart:
    """One measure: lines broken where nothing was read, and the range of each bucket as a band."""

    title: str
    unit: str
    lines: Sequence[str]
    bands: Sequence[str]
    top: str  # the value at the upper edge
    now: str
    mean: str
    highest: str


@dataclass(frozen=True, slots=True)
class Held:
    """A job's time on the device, in percent of the day; jobs that shared it are in rows."""

    job: Job
    classes: str
    left: float
    width: float
    row: int

    @property
    def top_px(self) -> int:
        return self.row * ROW_PX


@dataclass(frozen=True, slots=True)
class Trouble:
    at: datetime
    left: float
    text: str


class ProcessRow(TypedDict):
    pid: int
    user: str
    command: str
    used_bytes: int
    age: str
    job: str  # empty: an external process
    mailto: str


@dataclass(frozen=True, slots=True)
class Day:
    start: datetime
    end: datetime

    def place(self, at: datetime) -> float:
        """Percent from the left, within the day."""
        return round(100 * min(1.0, max(0.0, (at - self.start) / (self.end - self.start))), 2)

    def ticks(self) -> list[tuple[datetime, float]]:
        """Moments every four hours before the end."""
        moments = [self.end - timedelta(hours=hours) for hours in range(20, 0, -TICK_H)]
        return [(at, self.place(at)) for at in moments]


def day_until(now: datetime) -> Day:
    return Day(now - DAY, now)


def draw_charts(device: Device, day: Day) -> list[Chart]:
    """The stored readings of the day; measures without any reading are left out."""
    history = DeviceHistory(settings.HOME.device_history)
    start_s, end_s = day.start.timestamp(), day.end.timestamp()
    read = history.read(device.pk, start_s, end_s, POINTS)
    tops = {"memory_used_bytes": device.memory_bytes / words.GIB, "utilization_percent": 100.0}
    return [
        _draw(read[name], (start_s, end_s), str(title), unit, factor, tops.get(name))
        for name, title, unit, factor in CHARTS
        if name in read
    ]


def _draw(
    read: Series, window: tuple[float, float], title: str, unit: str, factor: float, top: float | None
) -> Chart:
    start_s, end_s = window
    x = (read.x - start_s) / (end_s - start_s) * WIDTH
    mean, low, high = (values * factor for values in (read.y, read.y_min, read.y_max))
    highest = float(np.nanmax(high))
    top = max(highest, 1.0) * 1.05 if top is None else max(top, highest)

    def down(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return HEIGHT - np.clip(values / top, 0, 1) * (HEIGHT - 2)

    pieces = _pieces(read.n > 0)
    return Chart(
        title=title,
        unit=unit,
        lines=[_points(x[piece], down(mean[piece])) for piece in pieces],
        bands=[
            _points(np.r_[x[piece], x[piece][::-1]], np.r_[down(high[piece]), down(low[piece])[::-1]])
            for piece in pieces
        ],
        top=f"{top:.0f} {unit}",
        now=f"{mean[read.n > 0][-1]:.0f} {unit}",
        mean=f"{np.average(mean[read.n > 0], weights=read.n[read.n > 0]):.0f} {unit}",
        highest=f"{highest:.0f} {unit}",
    )


def _pieces(read: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Runs of buckets with readings, as indices."""
    there = np.flatnonzero(read)
    return np.split(there, np.flatnonzero(np.diff(there) > 1) + 1)


def _points(x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]) -> str:
    return " ".join(f"{one:.1f},{other:.1f}" for one, other in zip(x, y, strict=True))


def held(leases: Sequence[Lease], day: Day) -> list[Held]:
    """Who held the device in the day, oldest first."""
    found: list[Held] = []
    ends: list[float] = []
    for lease in sorted(leases, key=lambda one: one.started_at):
        until = lease.ended_at or day.end
        if until <= day.start:
            continue
        left, right = day.place(lease.started_at), day.place(until)
        row = next((at for at, end in enumerate(ends) if end <= left), len(ends))
        ends[row:] = [right, *ends[row + 1 :]]
        job = lease.attempt.job
        found.append(Held(job, colour_classes(job.colour), left, round(max(0.3, right - left), 2), row))
    return found


def troubles(device: Device, day: Day) -> list[Trouble]:
    """Errors and slowdowns that jobs heard of, and times in which the device was out of order, newest first."""
    events = JobEvent.objects.filter(
        kind__in=ERRORS, at__gte=day.start, job__attempts__leases__device=device
    ).distinct()
    told = [
        Trouble(event.at, day.place(event.at), event.reason)
        for event in events.order_by("-at")[:MOST_ERRORS]
        if event.data.get("device", device.label) == device.label
    ]
    spans = DeviceSpan.objects.filter(device=device, use=Use.FAILED, started_at__gte=day.start)
    failed = [
        Trouble(
            span.started_at,
            day.place(span.started_at),
            _("Out of order for {duration}.").format(
                duration=words.duration((span.lasted_until(day.end) - span.started_at).total_seconds())
            ),
        )
        for span in spans.order_by("-started_at")[:MOST_ERRORS]
    ]
    return sorted([*told, *failed], key=lambda one: one.at, reverse=True)


def process_rows(device: Device, entry: DeviceEntry | None) -> list[ProcessRow]:
    """Every process on the device, external ones first, the largest first."""
    processes = entry["processes"] if entry else []
    strangers = {process.get("user") or "" for process in processes if not process.get("job")}
    people = User.objects.filter(username__in=strangers).exclude(email="")
    emails = dict(people.values_list("username", "email"))
    rows: list[ProcessRow] = [
        {
            "pid": process["pid"],
            "user": process.get("user") or "",
            "command": program(process),
            "used_bytes": process["used_bytes"],
            "age": words.duration(age_s) if (age_s := process.get("age_s")) is not None else "",
            "job": process.get("job") or "",
            "mailto": ""
            if process.get("job")
            else _mailto(emails.get(process.get("user") or ""), device, process["pid"]),
        }
        for process in processes
    ]
    return sorted(rows, key=lambda row: (bool(row["job"]), -row["used_bytes"]))


def _mailto(email: str | None, device: Device, pid: int) -> str:
    if not email:
        return ""
    subject = f"Your process {pid} on {device.label}"
    body = f"Your process {pid} uses {device.label}, so that no job of Berth can start there. Do you still need it?"
    return f"mailto:{quote(email)}?subject={quote(subject)}&body={quote(body)}"
