"""The timeline as the pages draw it: a lane for each device, with places in percent of the window."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NotRequired, TypedDict
from uuid import UUID

from django.conf import settings
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_noop as mark

from berth.shared import words
from dashboard.parts.memory_map import LEGEND, MemoryPart, memory_parts
from orchestrator.models import Device, Job, Use
from orchestrator.scheduler.timeline import Bar, Timeline, read_timeline
from orchestrator.store.metrics.device_history import DeviceHistory

# How far back and ahead each choice looks.
RANGES = {
    "2 h": (timedelta(hours=2), timedelta(hours=2)),
    "12 h": (timedelta(hours=12), timedelta(hours=6)),
    "24 h": (timedelta(hours=24), timedelta(hours=12)),
    "7 d": (timedelta(days=7), timedelta(days=1)),
}
DAY_S = 86_400
TICKS_S = (1_800, 3_600, 10_800, 21_600, DAY_S)
MOST_TICKS = 10
MOST_BARS = 300
LEAST_PERCENT = 0.1  # narrower parts are not drawn
ONE_BAR = timedelta(minutes=1)  # a job's attempts with a shorter gap are drawn as one bar
NAMED_PERCENT = 3.0  # a narrower bar has no room for a name, nor for a finger: targets are 24 px wide
EDGE_PERCENT = 2.5
ROW_PX = 26
MEMORY = mark("memory")
MOST_MEMORY = timedelta(days=1)  # a week of 64 devices is a gigabyte of readings
SAID_PERCENT = 8.0  # a narrower idle time has no room for its label
USES = {
    Use.FOREIGN: mark("external"),
    Use.RESERVED: mark("kept"),
    Use.DRAINED: mark("drained"),
    Use.FAILED: mark("failed"),
}


class Merged(TypedDict):
    """Attempts of one job on a device that follow each other."""

    bar: Bar
    start: datetime
    until: datetime


class JobPart(Merged):
    """A job's bar; places in percent of the window."""

    kind: Literal["job"]
    job: Job
    planned: bool
    classes: str
    title: str
    left: float
    width: float
    is_named: bool
    top_px: int


class OtherPart(TypedDict):
    """Time in which a device was idle, or used outside Berth's jobs."""

    kind: Literal["other", "idle"]
    left: float
    width: float
    said: NotRequired[str]
    use: NotRequired[str]
    who: NotRequired[str]


class Lane(TypedDict):
    device: Device
    parts: Sequence[JobPart | OtherPart | MemoryPart]
    height_px: int


class Lanes(TypedDict):
    lanes: list[Lane]
    note: str


class Choice(TypedDict):
    """A button above the timeline; ``line`` is what the address says."""

    name: str
    line: str
    chosen: bool


class Tick(TypedDict):
    at: datetime
    left: float
    is_day: bool


class TimelineView(Lanes):
    ranges: list[Choice]
    views: list[Choice]
    now_at: float
    ticks: list[Tick]


@dataclass(frozen=True, slots=True)
class Window:
    start: datetime
    end: datetime

    def place(self, at: datetime) -> float:
        """Percent from the left, clamped to the window."""
        share = (at - self.start) / (self.end - self.start)
        return round(100 * min(1.0, max(0.0, share)), 2)


def show_lanes(chosen: str, now: datetime) -> TimelineView:
    """The timeline around ``now``; an unknown range falls back to the first.

    Args:
        chosen: the name of a range; the suffix ", memory" shows memory in use instead of jobs.
    """
    name, _, view = chosen.partition(", ")
    by_memory = view == MEMORY
    names = [each for each, (back, _) in RANGES.items() if not by_memory or back <= MOST_MEMORY]
    name = name if name in names else names[0]
    back, ahead = RANGES[name]
    window = Window(now - back, now + ahead)
    lanes = _memory_lanes(window, now) if by_memory else _job_lanes(window, now)
    suffix = f", {MEMORY}" if by_memory else ""
    return {
        "ranges": [{"name": each, "line": f"{each}{suffix}", "chosen": each == name} for each in names],
        "views": [
            {"name": gettext("jobs"), "line": name, "chosen": not by_memory},
            {"name": gettext(MEMORY), "line": f"{name}, {MEMORY}", "chosen": by_memory},
        ],
        "now_at": window.place(now),
        "ticks": _ticks(window),
        **lanes,
    }


def _memory_lanes(window: Window, now: datetime) -> Lanes:
    history = DeviceHistory(settings.HOME.device_history)
    devices = sorted(Device.objects.all(), key=lambda device: device.place)
    return {
        "lanes": [
            {
                "device": device,
                "parts": memory_parts(history, device, window.start, window.end, now),
                "height_px": ROW_PX,
            }
            for device in devices
        ],
        "note": str(LEGEND),
    }


def _job_lanes(window: Window, now: datetime) -> Lanes:
    found = read_timeline(window.start, window.end, now=now)
    bars = [_bar(bar, window) for bar in _merged(found.bars, window.end)]
    seen = sorted((bar for bar in bars if bar["width"] >= LEAST_PERCENT), key=lambda bar: -bar["width"])
    kept = seen[:MOST_BARS]
    return {
        "lanes": [_lane(device, _parts(device, kept, found, window, now)) for device in found.devices],
        "note": _note(kept, len(seen) - len(kept), found, now),
    }


def _lane(device: Device, parts: list[JobPart | OtherPart]) -> Lane:
    """A device with its bars; jobs that share the device are stacked in rows."""
    ends: list[float] = []  # right edge of the last bar in each row
    for part in parts:
        if part["kind"] != "job":
            continue
        row = next((at for at, end in enumerate(ends) if end <= part["left"] + LEAST_PERCENT), len(ends))
        ends[row:] = [part["left"] + part["width"], *ends[row + 1 :]]
        part["top_px"] = row * ROW_PX
    return {"device": device, "parts": parts, "height_px": max(1, len(ends)) * ROW_PX}


def _merged(bars: Iterable[Bar], end: datetime) -> list[Merged]:
    """Merge consecutive attempts of one job on a device."""
    found: list[Merged] = []
    last: dict[tuple[str, UUID, bool], Merged] = {}
    for bar in sorted(bars, key=lambda one: one.start):
        key = (bar.device_id, bar.job.pk, bar.planned)
        until = bar.end or end
        before = last.get(key)
        if before and bar.start - before["until"] < ONE_BAR:
            before["until"] = max(before["until"], until)
        else:
            last[key] = {"bar": bar, "start": bar.start, "until": until}
            found.append(last[key])
    return found


def _bar(merged: Merged, window: Window) -> JobPart:
    bar = merged["bar"]
    left = window.place(merged["start"])
    width = round(window.place(merged["until"]) - left, 2)
    lasted = words.duration((merged["until"] - merged["start"]).total_seconds())
    return {
        **merged,
        "kind": "job",
        "job": bar.job,
        "planned": bar.planned,
        "classes": _classes(bar),
        "title": _title(bar, lasted),
        "left": left,
        "width": width,
        "is_named": width >= NAMED_PERCENT,
        "top_px": 0,
    }


def _classes(bar: Bar) -> str:
    colour = [] if bar.job.colour is None else [f"colour-{bar.job.colour % 8 + 1}"]
    return " ".join(["lane-bar", *(["is-planned"] if bar.planned else []), *colour])


def _title(bar: Bar, lasted: str) -> str:
    job = bar.job
    planned = [gettext("planned")] if bar.planned else []
    unknown = [gettext("end not known")] if bar.end is None else []
    told = ", ".join([*planned, lasted, *unknown])
    return f"{job.name} #{job.short_id}, {job.owner.get_username()}: {told}"


def _parts(
    device: Device, bars: Sequence[JobPart], found: Timeline, window: Window, now: datetime
) -> list[JobPart | OtherPart]:
    """A lane from left to right: idle times, use by others, and past and planned jobs."""
    own = sorted((bar for bar in bars if bar["bar"].device_id == device.pk), key=_in_order)
    others: list[OtherPart] = []
    for span in (one for one in found.spans if one.device_id == device.pk and one.use in USES):
        left = window.place(span.started_at)
        width = round(window.place(span.lasted_until(now)) - left, 2)
        if width >= LEAST_PERCENT:
            others.append(
                {
                    "kind": "other",
                    "left": left,
                    "width": width,
                    "use": gettext(USES[Use(span.use)]),
                    "who": span.owner,
                }
            )
    ran: list[JobPart | OtherPart] = [bar for bar in own if not bar["planned"]]
    taken = sorted([*ran, *others], key=lambda one: one["left"])
    known = window.place(device.added_at)  # earlier use of the device is unknown
    return [*_idle(taken, known, window, now), *others, *_in_turn(own)]


def _in_order(bar: JobPart) -> tuple[bool, float]:
    """Sort key: running jobs first, then waiting ones, each from left to right."""
    return bar["bar"].rank is None, bar["left"]


def _in_turn(bars: Sequence[JobPart]) -> list[JobPart]:
    """Start each waiting job's bar where the planned bar before it ends."""
    free_from = 0.0
    found: list[JobPart] = []
    for bar in bars:
        if bar["planned"] and bar["bar"].rank is None and bar["left"] < free_from:
            right = bar["left"] + bar["width"]
            bar = {**bar, "left": free_from, "width": round(max(0.0, right - free_from), 2)}
        if bar["planned"]:
            free_from = max(free_from, bar["left"] + bar["width"])
        found.append(bar)
    return [bar for bar in found if bar["width"] >= LEAST_PERCENT]


def _idle(
    taken: Sequence[JobPart | OtherPart], known: float, window: Window, now: datetime
) -> list[OtherPart]:
    span_s = (window.end - window.start).total_seconds()
    parts: list[OtherPart] = []
    at = known
    for left, right in [
        *((one["left"], one["left"] + one["width"]) for one in taken),
        (window.place(now),) * 2,
    ]:
        width = round(left - at, 2)
        if width > 2 * LEAST_PERCENT:
            time = words.duration(span_s * width / 100)
            said = gettext("idle {time}").format(time=time) if width >= SAID_PERCENT else ""
            parts.append({"kind": "idle", "left": at, "width": width, "said": said})
        at = max(at, right)
    return parts


def _ticks(window: Window) -> list[Tick]:
    span_s = (window.end - window.start).total_seconds()
    step_s = next((each for each in TICKS_S if span_s / each <= MOST_TICKS), TICKS_S[-1])
    first = -(-int(window.start.timestamp()) // step_s) * step_s
    moments = (
        datetime.fromtimestamp(at, tz=window.start.tzinfo)
        for at in range(first, int(window.end.timestamp()), step_s)
    )
    ticks: list[Tick] = [{"at": at, "left": window.place(at), "is_day": step_s == DAY_S} for at in moments]
    return [
        tick for tick in ticks if EDGE_PERCENT <= tick["left"] <= 100 - EDGE_PERCENT
    ]  # labels at the edge would be cut off


def _note(kept: Sequence[JobPart], hidden: int, found: Timeline, now: datetime) -> str:
    running = {one["bar"].device_id for one in kept if not one["planned"] and one["until"] >= now}
    planned = {one["job"].pk for one in kept if one["bar"].rank is None}
    total = len(found.devices)
    in_use = ngettext("{n} of {total} device is in use", "{n} of {total} devices are in use", total)
    said = [in_use.format(n=len(running), total=total)]
    if planned:
        placed = ngettext(
            "{n} waiting job has a planned place", "{n} waiting jobs have a planned place", len(planned)
        )
        said.append(placed.format(n=len(planned)))
    sentences = ["; ".join(said) + ".", gettext("Solid: was; dotted: planned; grey: idle.")]
    if hidden:
        sentences.append(gettext("{n} short ones are left out.").format(n=hidden))
    if found.truncated:
        sentences.append(gettext("Older ones are left out."))
    return " ".join(sentences)
