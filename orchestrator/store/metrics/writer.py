"""Writes metric columns of a job: one file for each (attempt, series), 16 bytes a point (docs/protocol.md, rule 12)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import orjson

from orchestrator.exceptions import Unavailable
from orchestrator.store.files.durable import sync_folder, write_all
from orchestrator.store.metrics.columns import Column, OpenFiles
from orchestrator.store.metrics.journal import (
    COLUMN,
    JOURNAL,
    NAMES,
    RECORD,
    NamesLine,
    column_path,
    last_seq,
    lengths_after,
    read_names,
    read_records,
    read_state,
)

MOST_SERIES = 1_000
MANY_DIRTY = 128  # above this, one sync of the file system is cheaper than one for each column


class Point(NamedTuple):
    """One value of one series.  ``step`` is a signed 64-bit number; ``time_s`` is the wall clock."""

    name: str
    step: int
    time_s: float
    value: float


class Committed(TypedDict):
    """How much of the columns is committed; the agent stores it with the byte offset of their source.

    The lengths of the columns follow from the journal, so this stays small.
    """

    v: int
    seq: int
    journal_records: int
    names_bytes: int
    dropped_series: int
    dropped_points: int


class MetricWriter:
    """Appends the points of one attempt; only one writer (the agent) may be open for a job.

    Opening cuts everything back to ``committed``: later points are read and appended again.  With None, this
    attempt starts from nothing; points of earlier attempts stay.

    Raises:
        Unavailable: committed points are missing from the columns; open with None and read their source again.
    """

    def __init__(self, folder: Path, attempt: int, started_at: float, committed: Committed | None) -> None:
        self._folder, self._attempt = folder, attempt
        (folder / str(attempt)).mkdir(parents=True, exist_ok=True)
        self._names_fd = os.open(folder / NAMES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._journal_fd = os.open(folder / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._state = (
            committed.copy()
            if committed
            else _before_attempt(folder, attempt, os.fstat(self._names_fd).st_size)
        )
        self._cut_back()
        self._names = read_names(folder)
        self._ids = {name: number for number, name in enumerate(self._names.series)}
        self._layout_ids = {layout: number for number, layout in enumerate(self._names.layouts)}
        self._refused: set[str] = set()
        self._columns: dict[int, Column] = {}
        self._files = OpenFiles()
        self._new_lines: list[bytes] = []
        self._runs: list[list[int]] = []  # [layout, points] since the last flush
        self._row: list[int] = []
        self._row_key: tuple[int, float] | None = None
        self._lengths = self._cut_columns()
        if attempt not in self._names.started_at:
            self._add_name({"attempt": attempt, "started_at": started_at})
        # The first stored start holds: readers add it to the milliseconds of every point.
        self._started_ms = round(self._names.started_at[attempt] * 1000)

    @property
    def seq(self) -> int:
        """Points of the job that are durable."""
        return self._state["seq"]

    @property
    def dropped_series(self) -> int:
        """Number of series refused because the job has too many."""
        return self._state["dropped_series"]

    def append(self, points: Sequence[Point]) -> None:
        """Add points in memory; consecutive points with the same (step, time) form a row."""
        row, row_key, ids, columns = self._row, self._row_key, self._ids, self._columns
        started_ms, last_time_s, ms = self._started_ms, -1.0, 0
        for name, step, time_s, value in points:
            number = ids.get(name)
            if number is None and (number := self._new_series(name)) is None:
                continue
            column = columns.get(number)
            if column is None:
                column = self._column(number)
            if time_s != last_time_s:
                last_time_s, ms = time_s, max(0, round(time_s * 1000) - started_ms)
            if not column.add(step, ms, value):
                self._state["dropped_points"] += 1
                continue
            key = (step, time_s)
            if key != row_key or number in row:
                if row:
                    self._end_row(row)
                    row.clear()
                row_key = key
            row.append(number)
        self._row_key = row_key

    def flush(self) -> Committed:
        """Make all points durable; commit the result in the same transaction as their source's offset."""
        if self._row:
            self._end_row(self._row)
            self._row.clear()
            self._row_key = None
        self._write_names()
        self._write_columns()
        self._write_journal()
        return self._state.copy()

    def close(self) -> None:
        """Close the files.  Points that were not flushed are dropped; their source still has them."""
        self._files.close()
        os.close(self._names_fd)
        os.close(self._journal_fd)

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Opening

    def _cut_back(self) -> None:
        state = self._state
        os.ftruncate(self._names_fd, state["names_bytes"])
        os.ftruncate(self._journal_fd, state["journal_records"] * RECORD.itemsize)
        if state["journal_records"]:
            seq = state["seq"].to_bytes(8, "little")
            os.pwrite(self._journal_fd, seq, (state["journal_records"] - 1) * RECORD.itemsize)

    def _cut_columns(self) -> dict[int, int]:
        """Cut this attempt's columns to their committed lengths; returns the lengths by series."""
        _, records = read_state(self._folder)
        self._last_layout = -1
        if len(records) and records["attempt"][-1] == self._attempt:
            self._last_layout = int(records["layout"][-1])
        lengths = {
            series: count
            for (attempt, series), count in lengths_after(records, self._names).items()
            if attempt == self._attempt
        }
        used = {path for series, count in lengths.items() for path in self._cut_series(series, count)}
        for path in (self._folder / str(self._attempt)).glob("*.col"):
            if path not in used:
                path.unlink()
        return lengths

    def _cut_series(self, series: int, count: int) -> list[Path]:
        paths = []
        for segment in range(len(self._names.bases(self._attempt, series))):
            path = column_path(self._folder, self._attempt, series, segment)
            if not path.exists():  # no point fitted the first segment
                continue
            size = min(path.stat().st_size // COLUMN.itemsize, count)
            os.truncate(path, size * COLUMN.itemsize)
            paths.append(path)
            count -= size
        if count:
            raise Unavailable(
                f"The metrics of attempt {self._attempt} have lost {count:,} points of "
                f"'{self._names.series[series]}'; they can be read again from its metrics file."
            )
        return paths

    # Appending

    def _new_series(self, name: str) -> int | None:
        if len(self._ids) >= MOST_SERIES:
            if name not in self._refused and len(self._refused) < 100 * MOST_SERIES:
                self._refused.add(name)
                self._state["dropped_series"] += 1
            self._state["dropped_points"] += 1
            return None
        number = len(self._ids)
        self._ids[name] = number
        self._add_name({"series": number, "name": name})
        return number

    def _column(self, series: int) -> "Column":
        column = Column(self._names.bases(self._attempt, series))
        self._columns[series] = column
        return column

    def _end_row(self, row: list[int]) -> None:
        layout = tuple(row)
        number = self._layout_ids.get(layout)
        if number is None:
            number = self._layout_ids[layout] = len(self._layout_ids)
            self._add_name({"layout": number, "series": layout})
        if self._runs and self._runs[-1][0] == number:
            self._runs[-1][1] += len(layout)
        else:
            self._runs.append([number, len(layout)])

    def _add_name(self, line: NamesLine) -> None:
        self._names.learn(line)
        self._new_lines.append(orjson.dumps(line) + b"\n")

    # Flushing: names, then columns, then the journal, so that a journal never refers to missing data

    def _write_names(self) -> None:
        for series, column in self._columns.items():
            for segment, (step, ms) in column.new_segments:
                line = {"segment": segment, "of": [self._attempt, series], "step": step, "ms": ms}
                self._new_lines.append(orjson.dumps(line) + b"\n")
            column.new_segments.clear()
        if not self._new_lines:
            return
        data = b"".join(self._new_lines)
        os.pwrite(self._names_fd, data, self._state["names_bytes"])
        os.fsync(self._names_fd)
        self._state["names_bytes"] += len(data)
        self._new_lines.clear()

    def _write_columns(self) -> None:
        dirty = []
        created = False
        for series, column in self._columns.items():
            for segment, records in column.take():
                fd, new = self._files.open(column_path(self._folder, self._attempt, series, segment))
                write_all(fd, records.tobytes())
                created |= new
                dirty.append((series, segment))
        if len(dirty) > MANY_DIRTY:
            os.sync()
            return
        for series, segment in dirty:
            fd, _ = self._files.open(column_path(self._folder, self._attempt, series, segment))
            os.fdatasync(fd)
        if created:
            sync_folder(self._folder / str(self._attempt))
            sync_folder(self._folder)

    def _write_journal(self) -> None:
        if not self._runs:
            return
        state, records = self._state, []
        seq, at = state["seq"], state["journal_records"]
        if at and self._runs[0][0] == self._last_layout:
            at -= 1
        for layout, points in self._runs:
            seq += points
            records.append((seq, self._attempt, layout))
        os.pwrite(self._journal_fd, np.array(records, RECORD).tobytes(), at * RECORD.itemsize)
        os.fdatasync(self._journal_fd)
        self._last_layout = self._runs[-1][0]
        state["seq"], state["journal_records"] = seq, at + len(records)
        self._runs.clear()


def seq_before(folder: Path, attempt: int) -> int:
    """The number of points that the attempts before this one stored."""
    records = read_records(folder)
    return last_seq(records[: int(np.searchsorted(records["attempt"], attempt, side="left"))])


def _before_attempt(folder: Path, attempt: int, names_bytes: int) -> Committed:
    """The state after the attempts before this one."""
    records = read_records(folder)
    records = records[: int(np.searchsorted(records["attempt"], attempt, side="left"))]
    data = (folder / NAMES).read_bytes()[:names_bytes]
    return Committed(
        v=1,
        seq=last_seq(records),
        journal_records=len(records),
        names_bytes=len(b"".join(_lines_before(data, attempt))),
        dropped_series=0,
        dropped_points=0,
    )


def _lines_before(data: bytes, attempt: int) -> Iterable[bytes]:
    """Whole lines before the first one of this attempt; names are written in the order of attempts."""
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        if orjson.loads(line).get("attempt") == attempt:
            return
        yield line


def points_of(step: int, time_s: float, values: Mapping[str, float]) -> list[Point]:
    """The points of one row."""
    return [Point(name, step, time_s, value) for name, value in values.items()]
