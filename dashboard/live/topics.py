"""The websocket's topics: their contents, and what a reader who is at some seq gets.

State topics (devices, jobs, queue, job, health) count their own changes; only the newest state is sent.
``metrics`` counts the points stored for the job and ``log`` the bytes, so these two resume exactly, from disk.
"""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings

from dashboard.live.frames import Batch, frame, gap
from dashboard.parts import rows, wall
from orchestrator.api.resources.logs import read_beside
from orchestrator.live.readings import NowReadings
from orchestrator.models import Device
from orchestrator.store.logs.blocks import split_places
from orchestrator.store.logs.chunks import LogChunk, read_log
from orchestrator.store.logs.text import LONGEST_LINE_BYTES, display_text
from orchestrator.store.metrics import series
from orchestrator.store.metrics.device_history import MEASURES, RECORD_MS, DeviceHistory

LOG_FRAME_BYTES = 64 << 10
LOG_BACKLOG_BYTES = 256 << 10  # a second's worth; who is further behind is taken to the end
GONE_KEPT = 256
RECENT_TICKS = 120
TICK_MS = 500
USE_MEAN = 3 * MEASURES.index("utilization_percent")  # of a record: mean, minimum and maximum of each measure
BATCHES_KEPT = 8

Row = Mapping[str, Any]
Beside = Callable[[Callable[[], Batch]], Coroutine[Any, Any, Batch]]


class Source(Protocol):
    """One topic as one audience sees it."""

    topic: str
    interval_s: float  # at least this long between two batches for one reader

    async def batch(self, after: int | None) -> Batch:
        """What a reader who is at ``after`` gets now; None is a reader who holds nothing."""


class _Batches:
    """The last few batches, by where their readers were; most readers are at the same place."""

    def __init__(self) -> None:
        self._kept: OrderedDict[object, Batch] = OrderedDict()
        self._under_way: dict[object, asyncio.Task[Batch]] = {}

    def get(self, key: object) -> Batch | None:
        return self._kept.get(key)

    def put(self, key: object, batch: Batch) -> Batch:
        self._kept[key] = batch
        while len(self._kept) > BATCHES_KEPT:
            self._kept.popitem(last=False)
        return batch

    async def read(self, key: object, read: Callable[[], Batch], beside: Beside = asyncio.to_thread) -> Batch:
        """What is kept, or what ``read`` finds in a thread: once, however many readers ask for it at that time.

        A hundred pages that come back at one time would otherwise read a series of hours a hundred times,
        and the process keeps the memory that this took.
        """
        if (kept := self._kept.get(key)) is not None:
            return kept
        if (task := self._under_way.get(key)) is None:
            task = self._under_way[key] = asyncio.create_task(beside(read))
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)  # a reader who leaves does not cancel it for the others

    def _end(self, key: object, task: asyncio.Task[Batch]) -> None:
        del self._under_way[key]
        if not task.cancelled() and task.exception() is None:  # otherwise the waiting reader gets the error
            self.put(key, task.result())


class StateSource:
    """A topic whose whole state is sent at each change.

    ``first`` is where its counter begins: later than any seq of a source before it that readers may still hold.
    """

    interval_s = 0.45

    def __init__(self, topic: str, first: int = 0) -> None:
        self.topic = topic
        self.seq = self._first = first
        self._data: Any = None
        self._batches = _Batches()

    def update(self, data: Any) -> bool:
        """Take the present state; whether it differs from the one before."""
        if self.seq > self._first and data == self._data:
            return False
        self.seq, self._data = self.seq + 1, data
        return True

    async def batch(self, after: int | None) -> Batch:
        if after == self.seq or self.seq == self._first:
            return Batch((), self.seq)
        kind = "snapshot" if after is None else "state"
        if kept := self._batches.get((kind, self.seq)):
            return kept
        text = frame(self.topic, kind, self.seq, self._data)
        return self._batches.put((kind, self.seq), Batch((text,), self.seq))


class DevicesSource:
    """Readings: numbers as ticks; a full frame when more than numbers changed."""

    topic = "devices"
    interval_s = 0.45

    def __init__(self, first: int = 0) -> None:
        self.seq = self._first = first
        self._shape, self._shape_seq = "", 0
        self._recent: dict[str, deque[float | None]] = {}  # for the sparklines of readers who join later
        self._read = ("", -1)
        self._readings: NowReadings | None = None
        self._batches = _Batches()

    def update(self, readings: NowReadings, devices: Sequence[Device]) -> bool:
        shape = wall.shape(readings, devices)
        read = (readings.stream, readings.seq)
        if self.seq > self._first and shape == self._shape and read == self._read:
            return False
        self.seq += 1
        if shape != self._shape:
            self._shape, self._shape_seq = shape, self.seq
        if read != self._read:
            for entry in readings.devices:
                if entry["id"] not in self._recent:
                    self._recent[entry["id"]] = _stored(entry["id"], readings.taken_at)
                self._recent[entry["id"]].append(entry.get("utilization_percent"))
        self._read, self._readings = read, readings
        return True

    async def batch(self, after: int | None) -> Batch:
        if self._readings is None or after == self.seq:
            return Batch((), self.seq)
        whole = after is None or after < self._shape_seq or after > self.seq
        if kept := self._batches.get((whole, self.seq)):
            return kept
        now = self._readings
        if whole:
            data: Any = {
                "t": now.taken_at,
                "shape": self._shape,
                "problem": now.problem,
                "simulated": now.simulated,
                "host": now.host,
                "host_words": wall.host_words(now.host),
                "devices": [_public_device(entry) for entry in now.devices],
                "readings": wall.tick(now),
                "recent": {device: list(kept) for device, kept in self._recent.items()},
            }
        else:
            data = {
                "t": now.taken_at,
                "readings": wall.tick(now),
                "host": now.host,
                "host_words": wall.host_words(now.host),
            }
        text = frame(self.topic, "snapshot" if whole else "tick", self.seq, data)
        return self._batches.put((whole, self.seq), Batch((text,), self.seq))


def _stored(device_id: str, until_s: float) -> deque[float | None]:
    """The stored use of a device for the first sparkline: a record every two seconds, as ticks of half a second."""
    ticks: list[float | None] = [None] * RECENT_TICKS
    per_record = RECORD_MS // TICK_MS
    history = DeviceHistory(settings.HOME.device_history)
    for at_s, values in history.newest(device_id, RECENT_TICKS // per_record):
        first = RECENT_TICKS - round((until_s - at_s) * 1000 / TICK_MS)
        for place in range(max(0, first), min(RECENT_TICKS, first + per_record)):
            ticks[place] = None if math.isnan(values[USE_MEAN]) else values[USE_MEAN]
    begun = next((place for place, use in enumerate(ticks) if use is not None), RECENT_TICKS)
    return deque(ticks[begun:], maxlen=RECENT_TICKS)


def _public_device(entry: Mapping[str, Any]) -> Row:
    """A reading as everybody may see it: the command lines of jobs hold their arguments, so they stay out."""
    shown = {name: value for name, value in entry.items() if name != "processes"}
    shown["processes"] = [
        {
            "pid": process.get("pid"),
            "used_bytes": process.get("used_bytes"),
            "user": process.get("user"),
            "command": "" if process.get("job") else wall.program(process),
            "job": process.get("job"),
        }
        for process in entry.get("processes", [])
    ]
    return shown


class ListSource:
    """Rows of jobs: whole at first, then those that changed, those that are gone, and the order if it changed."""

    interval_s = 0.45

    def __init__(self, topic: str, first: int = 0) -> None:
        self.topic = topic
        self.seq = self._first = first
        self._rows: dict[str, tuple[Row, int]] = {}  # by id: the row, and the seq of its last change
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._forgotten = first  # readers at or below this have missed a removal that is no longer known
        self._order: list[str] = []
        self._order_seq = 0
        self._batches = _Batches()

    def update(self, rows_now: Sequence[Row]) -> bool:
        seq, changed = self.seq + 1, self.seq == self._first
        found: dict[str, tuple[Row, int]] = {}
        for row in rows_now:
            known = self._rows.get(row["id"])
            if known is not None and known[0] == row:
                found[row["id"]] = known
            else:
                found[row["id"]], changed = (row, seq), True
                self._gone.pop(row["id"], None)
        for gone in self._rows.keys() - found.keys():
            self._gone[gone], changed = seq, True
        while len(self._gone) > GONE_KEPT:
            self._forgotten = self._gone.popitem(last=False)[1]
        order = list(found)
        if order != self._order:
            self._order, self._order_seq, changed = order, seq, True
        self._rows = found
        self.seq = seq if changed else self.seq
        return changed

    async def batch(self, after: int | None) -> Batch:
        if after == self.seq or self.seq == self._first:
            return Batch((), self.seq)
        if after is not None and (after < self._forgotten or after > self.seq):
            after = None
        if kept := self._batches.get((after, self.seq)):
            return kept
        if after is None:
            data: Row = {"jobs": [row for row, _ in self._rows.values()], "order": self._order}
        else:
            data = {"jobs": [row for row, changed in self._rows.values() if changed > after]}
            if gone := [job for job, seq in self._gone.items() if seq > after]:
                data["gone"] = gone
            if self._order_seq > after:
                data["order"] = self._order
        text = frame(self.topic, "snapshot" if after is None else "tick", self.seq, data)
        return self._batches.put((after, self.seq), Batch((text,), self.seq))


class PointsSource:
    """The points of a job, from the column store."""

    interval_s = 0.25

    def __init__(self, topic: str, folder: Path) -> None:
        self.topic = topic
        self.seq = 0
        self._folder = folder
        self._batches = _Batches()
        self._whole: Batch | None = None  # everything up to its seq, for who holds nothing

    def update(self, stored: int) -> bool:
        changed, self.seq = stored != self.seq, stored
        return changed

    async def batch(self, after: int | None) -> Batch:
        seq, after = self.seq, after or 0
        if after == seq:
            return Batch((), seq)
        if after > seq:
            return Batch((gap(self.topic, seq),), seq)
        if after == 0:
            return await self._from_the_start(seq)
        return await self._batches.read((after, seq), lambda: self._read(after, seq))

    async def _from_the_start(self, seq: int) -> Batch:
        """Everything up to a while ago, as long as one more frame brings the rest: reading it costs as much
        as the series is long.
        """
        whole = self._whole
        if whole is None or not whole.seq <= seq <= whole.seq + series.POINTS_A_FRAME:
            whole = await self._batches.read((0, seq), lambda: self._read(0, seq))
            self._whole = whole if whole.seq == seq else None  # else the files are behind the database
        return replace(whole, more=whole.seq < seq)

    def _read(self, after: int, seq: int) -> Batch:
        page = series.read_since(self._folder, after, until_seq=seq)
        if page.gap:
            return Batch((gap(self.topic, page.seq),), page.seq)
        more = {"reduced": True} if page.reduced else {}
        return Batch((frame(self.topic, "points", page.seq, page.points, **more),), page.seq)


class LogSource:
    """The log of one rank, from its file."""

    interval_s = 0.25

    def __init__(self, topic: str, path: Path) -> None:
        self.topic = topic
        self.path = path
        self.seq = 0
        self._batches = _Batches()

    def update(self, size: int) -> bool:
        changed, self.seq = size != self.seq, size
        return changed

    async def batch(self, after: int | None) -> Batch:
        if after == self.seq:
            return Batch((), self.seq)
        return await self._batches.read((after, self.seq), lambda: self._read(after), read_beside)

    def _before(self, chunk: LogChunk) -> bytes:
        """The end of what was sent before, as much of it as tells how the chunk's first line began."""
        begin = max(0, chunk.offset - LONGEST_LINE_BYTES - 1)
        if begin == chunk.offset:
            return b""
        return read_log(self.path, begin, LONGEST_LINE_BYTES + 1).data[: chunk.offset - begin]

    def _read(self, after: int | None) -> Batch:
        frames: list[str] = []
        if after is None:
            chunk = read_log(self.path, -LOG_FRAME_BYTES, LOG_FRAME_BYTES, whole_lines=True)
        else:
            chunk = read_log(self.path, after, LOG_FRAME_BYTES, whole_lines=True)
            if after > chunk.size:
                return Batch((gap(self.topic, chunk.size),), chunk.size)
            if chunk.size - after > LOG_BACKLOG_BYTES:
                chunk = read_log(self.path, -LOG_FRAME_BYTES, LOG_FRAME_BYTES, whole_lines=True)
                skipped = {"from": after, "to": chunk.offset}
                frames.append(frame(self.topic, "skipped", chunk.offset, skipped))
        if chunk.next_offset == chunk.offset:
            return Batch(tuple(frames), chunk.next_offset)
        before = self._before(chunk)
        # Lines that are too long are split at places that a chunk does not know; a part may be missing.
        is_uneven = bool(chunk.dropped_bytes) or _has_long_line(before, chunk.data)
        lines = None if is_uneven else chunk.data.count(b"\n")
        data = {"offset": chunk.offset, "text": display_text(chunk.data), "lines": lines}
        if before.endswith(b"\r") or (before[-1:] not in b"\n" and _writes_over(chunk.data)):
            data["over"] = True  # a progress bar: it replaces the line that is still open
        frames.append(frame(self.topic, "chunk", chunk.next_offset, data))
        more = chunk.next_offset < chunk.size
        return Batch(tuple(frames), chunk.next_offset, more=more, size_bytes=len(chunk.data))


def _has_long_line(before: bytes, data: bytes) -> bool:
    """Whether a line of ``data`` is split because of its length, or goes on behind such a place."""
    begin = max(before.rfind(b"\n"), before.rfind(b"\r")) + 1
    return bool(split_places(before[begin:] + data))


def _writes_over(line: bytes) -> bool:
    return b"\r" in line.split(b"\n", 1)[0].rstrip(b"\r")


def own_rows(board: Sequence[rows.Entry], user_id: int | None) -> list[Row]:
    """The rows of one person's jobs; of everybody's for None, which is what staff see."""
    return [entry.own for entry in board if user_id is None or entry.owner_id == user_id]
