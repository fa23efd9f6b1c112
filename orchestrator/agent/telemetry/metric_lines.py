"""Read the JSON lines of a run's metrics file (training/events.py) as points and events; nothing is trusted."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from orchestrator.store.metrics.writer import Point
from training.events import EVENT, HEARTBEAT, RESERVED, STEP, TIME, TOTAL_STEPS, TRACKER

LONGEST_LINE_BYTES = 64 << 10
NAME_BYTES = 200
MOST_VALUES = 1_000  # in one line
MOST_TRACKERS = 16
OLDEST_S = 400 * 86_400.0  # longer than any job; an older time comes from a clock that was never set
NEWEST_S = 86_400.0
INT64_LAST = (1 << 63) - 1
EPOCH = "epoch"
OTHER_TIMES = ("t", "timestamp")
NOT_NUMBERS = {
    "nan": math.nan,
    "inf": math.inf,
    "infinity": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}


@dataclass(slots=True)
class ParsedBatch:
    """The content of complete lines, in their order.

    ``consumed_bytes`` ends after the last complete line: the next batch begins there.
    """

    points: list[Point] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    consumed_bytes: int = 0
    lines: int = 0
    last_step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    heartbeat_s: float | None = None
    dropped_lines: int = 0  # too long, or not one JSON object
    odd_steps: int = 0  # decreasing, fractional, or beyond 64 bits
    odd_times: int = 0  # from a clock that cannot be right
    nonfinite: int = 0
    first_nonfinite: tuple[str, int] | None = None  # name and step
    tracked: list[tuple[str, Point]] = field(default_factory=list)  # each with the tracker's name
    trackers: set[str] = field(default_factory=set)  # that were seen, with or without values
    length: int | None = None  # steps of the whole training, as its trainer told the tee


def parse_lines(
    data: bytes, *, now: float, last_step: int | None = None, at_end: bool = False
) -> ParsedBatch:
    """Read the complete lines of ``data``; an incomplete line at its end is left for the next call.

    Args:
        now: seconds since 1970; replaces missing and impossible times.
        last_step: of the previous batch; used for lines without a step.
        at_end: nothing will follow, so a last line without a newline is complete.

    A line above 64 KiB is dropped, even before its end has arrived.
    """
    batch = ParsedBatch(last_step=last_step)
    end = len(data) if at_end else data.rfind(b"\n") + 1
    if not end and len(data) > LONGEST_LINE_BYTES:
        # The rest of the line will arrive as a broken line and be dropped as well.
        batch.dropped_lines, batch.consumed_bytes = 1, len(data)
        return batch
    batch.consumed_bytes = end
    for line in data[:end].split(b"\n"):
        if line:
            _read_line(batch, line, now)
    return batch


def _read_line(batch: ParsedBatch, line: bytes, now: float) -> None:
    batch.lines += 1
    record = decode(line)
    if record is None:
        if line.strip():
            batch.dropped_lines += 1
        return
    if isinstance(tracker := record.get(TRACKER), str):
        _read_tracked(batch, record, tracker, now)
        return
    if EVENT in record:
        batch.events.append(record)
        return
    if HEARTBEAT in record:
        batch.heartbeat_s = _time(batch, record[HEARTBEAT], now)
    _read_progress(batch, record)
    _read_values(batch, record, now)


def decode(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None if it is another text or too long."""
    if len(line) > LONGEST_LINE_BYTES:
        return None
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:  # Python's json writes NaN and Infinity, which orjson refuses
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def _read_progress(batch: ParsedBatch, record: Mapping[str, Any]) -> None:
    batch.total_steps = _total(record) or batch.total_steps
    epoch = record.get(EPOCH)
    if isinstance(epoch, int | float) and not isinstance(epoch, bool) and _finite(epoch):
        batch.epoch = float(epoch)


def _total(record: Mapping[str, Any]) -> int | None:
    total = record.get(TOTAL_STEPS)
    if isinstance(total, int) and not isinstance(total, bool) and 0 < total <= INT64_LAST:
        return total
    return None


def _read_values(batch: ParsedBatch, record: Mapping[str, Any], now: float) -> None:
    step = None
    time_s = now
    for name, value in list(record.items())[:MOST_VALUES]:
        if name in RESERVED or name in OTHER_TIMES:
            continue
        number = as_number(value)
        if number is None or not (name := short_name(name)):
            continue
        if step is None:
            step, time_s = _step(batch, record), _line_time(batch, record, now)
        if not math.isfinite(number):
            batch.nonfinite += 1
            batch.first_nonfinite = batch.first_nonfinite or (name, step)
        batch.points.append(Point(name, step, time_s, number))
    if step is None and STEP in record:
        _step(batch, record)


def _read_tracked(batch: ParsedBatch, record: Mapping[str, Any], tracker: str, now: float) -> None:
    """Read a line of ``training/tee``; its steps are the tracker's, so they say nothing about other lines."""
    source = short_name(tracker)
    if len(batch.trackers) < MOST_TRACKERS:
        batch.trackers.add(source)
    if STEP not in record:  # with a step it is a value of the script's that happens to have this name
        batch.length = _total(record) or batch.length
    step = record.get(STEP)
    if type(step) is not int or not 0 <= step <= INT64_LAST:
        return
    time_s = _line_time(batch, record, now)
    for name, value in list(record.items())[:MOST_VALUES]:
        number = as_number(value)
        if number is not None and name not in RESERVED and name != TRACKER and (name := short_name(name)):
            batch.tracked.append((source, Point(name, step, time_s, number)))


def as_number(value: object) -> float | None:
    """A float for a JSON number, or for the words that stand for NaN and infinities; None for anything else."""
    if isinstance(value, float):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        return NOT_NUMBERS.get(value.lower())
    return None


@lru_cache(maxsize=256)  # every line brings the same few names: reading takes 7 % less time
def short_name(name: str) -> str:
    """A metric's name without control characters and surrogates, at most 200 bytes."""
    if not (name.isascii() and name.isprintable()):
        name = "".join(c if c.isprintable() else "\ufffd" for c in name)
    if len(name) > NAME_BYTES // 4:
        name = name.encode()[:NAME_BYTES].decode(errors="ignore")
    return name.strip()


def _step(batch: ParsedBatch, record: Mapping[str, Any]) -> int:
    value = record.get(STEP)
    before = batch.last_step
    if type(value) is int and -INT64_LAST <= value <= INT64_LAST:
        step = value
    elif value is None:
        return 0 if before is None else before
    else:
        batch.odd_steps += 1
        step = _nearest_step(value, before)
        batch.last_step = step
        return step
    if (before is not None and step < before) or step < 0:
        batch.odd_steps += 1
    batch.last_step = step
    return step


def _nearest_step(value: object, before: int | None) -> int:
    number = as_number(value)
    if number is None or math.isnan(number):
        return 0 if before is None else before
    if abs(number) >= INT64_LAST:
        return INT64_LAST if number > 0 else -INT64_LAST
    return math.floor(number)


def _line_time(batch: ParsedBatch, record: Mapping[str, Any], now: float) -> float:
    for key in (TIME, *OTHER_TIMES):
        if key in record:
            return _time(batch, record[key], now)
    return now


def _time(batch: ParsedBatch, value: object, now: float) -> float:
    number = as_number(value)
    if number is not None and now - OLDEST_S <= number <= now + NEWEST_S:
        return number
    batch.odd_times += 1
    return now


def _finite(value: float) -> bool:
    number = as_number(value)
    return number is not None and math.isfinite(number)
