"""Lines of a log by number, with an index of every 1,000th line (``rank<r>.idx``)."""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.durable import append_behind
from orchestrator.store.logs import LONGEST_LINE_BYTES, display_text, dropped_line, next_data, read_piece
from orchestrator.store.plain_file import open_plain

EVERY = 1_000
SCAN_BYTES = 1 << 20
FIRST_SCAN_BYTES = 64 << 10  # a page of lines seldom needs more
MOST_BYTES_A_TURN = 64 << 20
MOST_LINES = 5_000
# Where line ``line`` (from 0) begins, and when it was seen; 24 bytes.
ENTRY = np.dtype([("offset", "<u8"), ("line", "<u8"), ("time_s", "<f8")])


@dataclass(frozen=True, slots=True)
class LogLine:
    number: int  # from 0
    offset: int
    data: bytes  # without its newline, at most 16 KiB of it
    end: int  # the byte behind it and its newline
    is_open: bool  # it has no newline yet


class LineIndex:
    """Extends the index of one log; only one process does (the agent). Losing it costs a rescan, no more."""

    def __init__(self, log: Path, index: Path) -> None:
        self._log, self._index = log, index
        entries = read_index(index)
        self._kept = len(entries)
        # Up to where it was read, and where the line begins that has no newline yet.
        self.offset = self._begin = int(entries["offset"][-1]) if len(entries) else 0
        self._lines = int(entries["line"][-1]) if len(entries) else 0

    def seen(self, *, at_end: bool = False) -> int:
        """Whole lines up to where it was read; at the end one without a newline is whole too."""
        return self._lines + (at_end and self.offset > self._begin)

    def extend(self, now_s: float, most_bytes: int = MOST_BYTES_A_TURN) -> int:
        """Index what was written since, about ``most_bytes`` of it; returns the number of whole lines."""
        try:
            fd = open_plain(self._log)
        except OSError:
            return self._lines
        try:
            self._scan(fd, now_s, self.offset + most_bytes)
        finally:
            os.close(fd)
        return self._lines

    def _scan(self, fd: int, now_s: float, until: int) -> None:
        found: list[tuple[int, int, float]] = []
        size = os.fstat(fd).st_size
        while self.offset < until:
            # What the cap dropped may be terabytes; a log that was cut short has nothing new.
            self.offset = max(self.offset, next_data(fd, self.offset, size))
            if not (data := os.pread(fd, SCAN_BYTES, self.offset)):
                break
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
            if len(ends):
                first = -self._lines % EVERY or EVERY
                found += [
                    (self.offset + int(ends[at - 1]) + 1, self._lines + at, now_s)
                    for at in range(first, len(ends) + 1, EVERY)
                ]
                self._lines += len(ends)
                self._begin = self.offset + int(ends[-1]) + 1
            self.offset += len(data)
        if found:
            append_behind(self._index, self._kept * ENTRY.itemsize, np.array(found, ENTRY).tobytes())
            self._kept += len(found)


def read_index(index: Path) -> NDArray[np.void]:
    """The whole entries, shape ``(entries,)``."""
    try:
        data = index.read_bytes()
    except FileNotFoundError:
        return np.empty(0, ENTRY)
    return np.frombuffer(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)


def count_lines(log: Path, index: Path) -> int:
    """Lines of a log; one that has no newline yet counts. A log that is missing has none."""
    entries = read_index(index)
    offset = int(entries["offset"][-1]) if len(entries) else 0
    lines = int(entries["line"][-1]) if len(entries) else 0
    last = b"\n"
    try:
        fd = open_plain(log)
    except OSError:
        return 0
    try:
        size = os.fstat(fd).st_size
        while offset < size:
            offset = next_data(fd, offset, size)
            data = os.pread(fd, SCAN_BYTES, offset)
            lines += data.count(b"\n")
            last = data[-1:]  # none where a hole is left: that shows as a line
            if not data:
                break
            offset += len(data)
    finally:
        os.close(fd)
    return lines + (last != b"\n")


def read_lines(log: Path, index: Path, first: int, count: int) -> list[LogLine]:
    """Lines by number, a negative one from the end; fewer where the log ends, at most 5,000.

    Where the cap dropped a part of the log, one line says so; what follows has the numbers that it had before.
    """
    if first < 0:
        first = max(0, count_lines(log, index) + first)
    last = first + min(count, MOST_LINES)
    found: list[LogLine] = []
    for block in read_blocks(log, index, first):
        if block.number >= last or len(found) >= MOST_LINES:
            break
        found += _cut(block, first, last)
    return found[:MOST_LINES]


def show_lines(log: Path, index: Path, first: int, count: int) -> dict[str, Any]:
    """As ``read_lines``, as text that is safe to show; the fields are those of REST and of the websocket."""
    total = count_lines(log, index)
    # Read after it was counted: a log that grew meanwhile has at least as many lines as are told.
    lines = read_lines(log, index, first, count)
    last = lines[-1] if lines else None
    return {
        "total": max(total, last.number + 1) if last else total,
        "end": 0 if last is None else last.offset if last.is_open else last.end,
        "open": last is not None and last.is_open,
        "lines": [
            {"number": line.number, "offset": line.offset, "text": display_text(line.data)} for line in lines
        ],
    }


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive whole lines of a log, each with its newline (of the last line of a log it may be missing)."""

    number: int  # of the first line
    offset: int
    data: bytes


def read_blocks(log: Path, index: Path, first: int = 0) -> Iterator[LineBlock]:
    """The log as blocks of at most about a MiB, from the last indexed line at or before ``first`` on.

    Where the cap dropped a part, a line says so; what follows has the numbers that it had before.
    """
    entries = read_index(index)
    place = int(np.searchsorted(entries["line"], first, side="right")) - 1
    number = int(entries["line"][place]) if place >= 0 else 0
    offset = at = int(entries["offset"][place]) if place >= 0 else 0
    carry, scan_bytes = b"", FIRST_SCAN_BYTES
    while (piece := read_piece(log, at, scan_bytes)).next_offset > at:
        at, scan_bytes = piece.next_offset, min(2 * scan_bytes, SCAN_BYTES)
        if piece.dropped_bytes:
            if carry:
                yield LineBlock(number, offset, carry + b"\n")
            number, carry = number + bool(carry), b""
            yield LineBlock(number, piece.offset, dropped_line(piece.dropped_bytes))
            number, offset = _number_behind(log, entries, at, number + 1), at
            continue
        data = carry + piece.data
        end = data.rfind(b"\n") + 1
        if end:
            yield LineBlock(number, offset, data[:end])
            number += data.count(b"\n", 0, end)
            offset += end
        carry = data[end:]
    if carry:
        yield LineBlock(number, offset, carry)


def _number_behind(log: Path, entries: NDArray[np.void], at: int, least: int) -> int:
    """The number of the line, or the end of one, that follows a dropped part: counted back from the next indexed one."""
    place = int(np.searchsorted(entries["offset"], at))
    if place == len(entries):
        return least
    until, between = int(entries["offset"][place]), 0
    while at < until and (piece := read_piece(log, at, min(SCAN_BYTES, until - at))).data:
        between += piece.data.count(b"\n")
        at = piece.next_offset
    return max(least, int(entries["line"][place]) - between)


def _cut(block: LineBlock, first: int, last: int) -> list[LogLine]:
    """The lines of a block from number ``first`` to before ``last``."""
    number, offset = block.number, block.offset
    file = io.BytesIO(block.data)
    if first > number:
        ends = np.flatnonzero(np.frombuffer(block.data, np.uint8) == 10)
        if first - number > len(ends):
            return []
        offset += file.seek(int(ends[first - number - 1]) + 1)
        number = first
    lines: list[LogLine] = []
    for line in islice(file, last - number):  # unlike splitlines, it cuts at newlines only
        is_open = not line.endswith(b"\n")
        shown = line.removesuffix(b"\n")[:LONGEST_LINE_BYTES].rstrip(b"\r")
        lines.append(LogLine(number, offset, shown, offset + len(line), is_open))
        number, offset = number + 1, offset + len(line)
    return lines
