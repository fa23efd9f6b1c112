"""Lines of a log by number, with an index of every 1,000th line beside it (``rank<r>.idx``)."""

import io
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.durable import write_all
from orchestrator.store.logs import LONGEST_LINE_BYTES, read_log

EVERY = 1_000
SCAN_BYTES = 1 << 20
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
        self._offset = int(entries["offset"][-1]) if len(entries) else 0
        self._lines = int(entries["line"][-1]) if len(entries) else 0
        self._kept = len(entries)

    def extend(self, now: float) -> int:
        """Index what was written since; returns the number of whole lines."""
        try:
            fd = os.open(self._log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._lines
        try:
            self._scan(fd, now)
        finally:
            os.close(fd)
        return self._lines

    def _scan(self, fd: int, now: float) -> None:
        found: list[tuple[int, int, float]] = []
        while data := os.pread(fd, SCAN_BYTES, self._offset):
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
            first = -self._lines % EVERY or EVERY
            found += [
                (self._offset + int(ends[at - 1]) + 1, self._lines + at, now)
                for at in range(first, len(ends) + 1, EVERY)
            ]
            self._lines += len(ends)
            self._offset += len(data)
        if found:
            self._append(found)

    def _append(self, found: list[tuple[int, int, float]]) -> None:
        fd = os.open(self._index, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, self._kept * ENTRY.itemsize)  # half an entry of a crash
            os.lseek(fd, 0, os.SEEK_END)
            write_all(fd, np.array(found, ENTRY).tobytes())
        finally:
            os.close(fd)
        self._kept += len(found)


def read_index(index: Path) -> NDArray[np.void]:
    """The whole entries, shape ``(entries,)``."""
    try:
        data = index.read_bytes()
    except FileNotFoundError:
        return np.empty(0, ENTRY)
    return np.frombuffer(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)


def count_lines(log: Path, index: Path) -> int:
    """Lines of a log; one that has no newline yet counts."""
    entries = read_index(index)
    offset = int(entries["offset"][-1]) if len(entries) else 0
    lines = int(entries["line"][-1]) if len(entries) else 0
    last = b"\n"
    with log.open("rb") as file:
        file.seek(offset)
        while data := file.read(SCAN_BYTES):
            lines += data.count(b"\n")
            last = data[-1:]
    return lines + (last != b"\n")


def read_lines(log: Path, index: Path, first: int, count: int) -> list[LogLine]:
    """Lines by number, a negative one from the end; fewer where the log ends, at most 5,000.

    Where the cap dropped a part of the log, one line says so; numbers go on from the next indexed line.
    """
    if not log.exists():
        return []
    if first < 0:
        first = max(0, count_lines(log, index) + first)
    last = first + min(count, MOST_LINES)
    found: list[LogLine] = []
    for line in _lines_from(log, index, first):
        if line.number >= last or len(found) >= MOST_LINES:
            break
        if line.number >= first:
            found.append(line)
    return found


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive whole lines of a log, each with its newline (of the last line of a log it may be missing)."""

    number: int  # of the first line
    offset: int
    data: bytes


def read_blocks(log: Path, index: Path, first: int = 0) -> Iterator[LineBlock]:
    """The log as blocks of about a MiB, from the last indexed line at or before ``first`` on.

    Where the cap dropped a part, a line says so; numbers go on from the next indexed line.
    """
    entries = read_index(index)
    offsets = entries["offset"].tolist()
    place = int(np.searchsorted(entries["line"], first, side="right")) - 1
    number = int(entries["line"][place]) if place >= 0 else 0
    offset = at = offsets[place] if place >= 0 else 0
    carry = b""
    while (chunk := read_log(log, at, SCAN_BYTES)).data:
        data = carry + chunk.data
        end = data.rfind(b"\n") + 1
        if end:
            yield LineBlock(number, offset, data[:end])
            number += data.count(b"\n", 0, end)
            offset += end
        carry, at = data[end:], chunk.next_offset
        if chunk.dropped_bytes:
            place = bisect_right(offsets, at)
            if place < len(offsets):
                number, at, carry = int(entries["line"][place]), offsets[place], b""
            offset = at - len(carry)
    if carry:
        yield LineBlock(number, offset, carry)


def _lines_from(log: Path, index: Path, first: int) -> Iterator[LogLine]:
    for block in read_blocks(log, index, first):
        number, offset = block.number, block.offset
        for line in io.BytesIO(block.data):  # unlike splitlines, it cuts at newlines only
            is_open = not line.endswith(b"\n")
            shown = line.removesuffix(b"\n")[:LONGEST_LINE_BYTES].rstrip(b"\r")
            yield LogLine(number, offset, shown, offset + len(line), is_open)
            number, offset = number + 1, offset + len(line)
