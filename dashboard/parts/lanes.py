"""The time line as the pages draw it: a lane for each device, with places in percent of the window."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from berth import words
from dashboard.parts.memory_map import LEGEND, memory_parts
from orchestrator.models import Device, Use
from orchestrator.scheduler.timeline import Bar, Timeline, read_timeline
from orchestrator.store.device_history import DeviceHistory

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
LEAST_PERCENT = 0.1  # what is narrower shows nothing
ONE_BAR = timedelta(minutes=1)  # attempts of a job with less between them are drawn as one
NAMED_PERCENT = 3.0  # of a bar with room for a name, and for a finger: targets are 24 px wide or none
EDGE_PERCENT = 2.5
ROW_PX = 26
MEMORY = "memory"
MOST_MEMORY = timedelta(days=1)  # a week of 64 devices is a gigabyte of readings
SAID_PERCENT = 8.0  # of an idle time that has room for its words
USES = {Use.FOREIGN: "not ours", Use.RESERVED: "kept", Use.DRAINED: "drained", Use.FAILED: "failed"}


@dataclass(frozen=True, slots=True)
class Window:
    start: datetime
    end: datetime

    def place(self, at: datetime) -> float:
        """Percent from the left; what lies outside is at its edge."""
        share = (at - self.start) / (self.end - self.start)
        return round(100 * min(1.0, max(0.0, share)), 2)


def show_lanes(chosen: str, now: datetime) -> dict[str, Any]:
    """The time line around ``now``; a range that is none is the first.

    Args:
        chosen: the name of a range; with ", memory" behind it how full the devices were instead of who had them.
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
            {"name": "jobs", "line": name, "chosen": not by_memory},
            {"name": MEMORY, "line": f"{name}, {MEMORY}", "chosen": by_memory},
        ],
        "now_at": window.place(now),
        "ticks": _ticks(window),
        **lanes,
    }


def _memory_lanes(window: Window, now: datetime) -> dict[str, Any]:
    history = DeviceHistory(settings.HOME.device_history)
    devices = Device.objects.all()
    return {
        "lanes": [
            {
                "device": device,
                "parts": memory_parts(history, device, window.start, window.end, now),
                "height_px": ROW_PX,
            }
            for device in devices
        ],
        "note": LEGEND,
    }


def _job_lanes(window: Window, now: datetime) -> dict[str, Any]:
    found = read_timeline(window.start, window.end, now=now)
    bars = [_bar(bar, window) for bar in _merged(found.bars, window.end)]
    seen = sorted((bar for bar in bars if bar["width"] >= LEAST_PERCENT), key=lambda bar: -bar["width"])
    kept = seen[:MOST_BARS]
    return {
        "lanes": [_lane(device, _parts(device, kept, found, window, now)) for device in found.devices],
        "note": _note(kept, len(seen) - len(kept), found, now),
    }


def _lane(device: Device, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A device with its bars; jobs that share it at one time stand in rows below each other."""
    ends: list[float] = []  # of the last bar in each row
    for part in (one for one in parts if one["kind"] == "job"):
        row = next((at for at, end in enumerate(ends) if end <= part["left"] + LEAST_PERCENT), len(ends))
        ends[row:] = [part["left"] + part["width"], *ends[row + 1 :]]
        part["top_px"] = row * ROW_PX
    return {"device": device, "parts": parts, "height_px": max(1, len(ends)) * ROW_PX}


def _merged(bars: Iterable[Bar], end: datetime) -> list[dict[str, Any]]:
    """Attempts of one job that follow each other on a device, as one."""
    found: list[dict[str, Any]] = []
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for bar in sorted(bars, key=lambda one: one.start):
        key = (bar.device_id, bar.job.pk, bar.planned)
        until = bar.end or end
        before = last.get(key)
        if before and bar.start - before["until"] < ONE_BAR:
            before["until"] = max(before["until"], until)
        else:
            last[key] = {"bar": bar, "from": bar.start, "until": until}
            found.append(last[key])
    return found


def _bar(merged: dict[str, Any], window: Window) -> dict[str, Any]:
    bar = merged["bar"]
    left = window.place(merged["from"])
    width = round(window.place(merged["until"]) - left, 2)
    return {
        **merged,
        "kind": "job",
        "job": bar.job,
        "planned": bar.planned,
        "slot": None if bar.job.colour is None else bar.job.colour % 8 + 1,
        "left": left,
        "width": width,
        "is_named": width >= NAMED_PERCENT,
        "lasted": words.duration((merged["until"] - merged["from"]).total_seconds()),
        "end_is_known": bar.end is not None,
    }


def _parts(
    device: Device, bars: Sequence[dict[str, Any]], found: Timeline, window: Window, now: datetime
) -> list[dict[str, Any]]:
    """A lane from left to right: what others had, what jobs had or will have, and between them idle times."""
    own = sorted((bar for bar in bars if bar["bar"].device_id == device.pk), key=_in_order)
    others = []
    for span in (one for one in found.spans if one.device_id == device.pk and one.use in USES):
        left = window.place(span.started_at)
        width = round(window.place(span.lasted_until(now)) - left, 2)
        if width >= LEAST_PERCENT:
            others.append(
                {"kind": "other", "left": left, "width": width, "use": USES[Use(span.use)], "who": span.owner}
            )
    taken = sorted([bar for bar in own if not bar["planned"]] + others, key=lambda one: one["left"])
    known = window.place(device.added_at)  # before, nobody knows
    return _idle(taken, known, window, now) + others + _in_turn(own)


def _in_order(bar: dict[str, Any]) -> tuple[bool, float]:
    """What runs first, then what waits, each from left to right."""
    return bar["bar"].rank is None, bar["left"]


def _in_turn(bars: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What waits is drawn from where the planned bars before it end."""
    free_from, found = 0.0, []
    for bar in bars:
        if bar["planned"] and bar["bar"].rank is None and bar["left"] < free_from:
            right = bar["left"] + bar["width"]
            bar = {**bar, "left": free_from, "width": round(max(0.0, right - free_from), 2)}
        if bar["planned"]:
            free_from = max(free_from, bar["left"] + bar["width"])
        found.append(bar)
    return [bar for bar in found if bar["width"] >= LEAST_PERCENT]


def _idle(
    taken: Sequence[dict[str, Any]], known: float, window: Window, now: datetime
) -> list[dict[str, Any]]:
    span_s = (window.end - window.start).total_seconds()
    parts, at = [], known
    for one in [*taken, {"left": window.place(now), "width": 0.0}]:
        width = round(one["left"] - at, 2)
        if width > 2 * LEAST_PERCENT:
            said = f"idle {words.duration(span_s * width / 100)}" if width >= SAID_PERCENT else ""
            parts.append({"kind": "idle", "left": at, "width": width, "said": said})
        at = max(at, one["left"] + one["width"])
    return parts


def _ticks(window: Window) -> list[dict[str, Any]]:
    span_s = (window.end - window.start).total_seconds()
    step_s = next((each for each in TICKS_S if span_s / each <= MOST_TICKS), TICKS_S[-1])
    first = -(-int(window.start.timestamp()) // step_s) * step_s
    moments = (
        datetime.fromtimestamp(at, tz=window.start.tzinfo)
        for at in range(first, int(window.end.timestamp()), step_s)
    )
    ticks: list[dict[str, Any]] = [
        {"at": at, "left": window.place(at), "is_day": step_s == DAY_S} for at in moments
    ]
    return [tick for tick in ticks if EDGE_PERCENT <= tick["left"] <= 100 - EDGE_PERCENT]  # no half words


def _note(kept: Sequence[dict[str, Any]], hidden: int, found: Timeline, now: datetime) -> str:
    running = {one["bar"].device_id for one in kept if not one["planned"] and one["until"] >= now}
    planned = {one["job"].pk for one in kept if one["bar"].rank is None}
    said = f"{len(running)} of {words.plural(len(found.devices), 'device')} {'is' if len(found.devices) == 1 else 'are'} in use"
    if planned:
        said += f"; {words.plural(len(planned), 'waiting job has', 'waiting jobs have')} a planned place"
    left_out = f" {hidden} short ones are left out." if hidden else ""
    older = " Older ones are left out." if found.truncated else ""
    return f"{said}. Solid: was; dotted: planned; grey: idle.{left_out}{older}"
