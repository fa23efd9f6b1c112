"""Lines of a log by number, with an index of every 1,000th line (``rank<r>.idx``)."""

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from orchestrator.exceptions import Unavailable
from orchestrator.store.files.durable import append_behind
from orchestrator.store.files.untrusted import open_plain
from orchestrator.store.logs.blocks import LineBlock, LineCursor, visible_part
from orchestrator.store.logs.text import display_text

EVERY = 1_000
SCAN_BYTES = 1 << 20
FIRST_SCAN_BYTES = 64 << 10  # a page of lines rarely needs more
MOST_BYTES_A_TURN = 64 << 20
MOST_LINES = 5_000
MOST_BYTES = 4 << 20  # of lines read at once; fits the 200 lines of a viewer's page, however long
LAST = 1 << 62  # beyond every line
# Where line ``line`` (from 0) starts, and when it was seen; 24 bytes.
ENTRY = np.dtype([("offset", "<u8"), ("line", "<u8"), ("time_s", "<f8")])

HasLeft = Callable[[], bool]


class ReaderLeft(Unavailable):
    """The reader disconnected; nobody waits for these lines."""


def never() -> bool:
    """For readers that never leave."""
    return False


@dataclass(frozen=True, slots=True)
class LogLine:
    number: int  # from 0
    offset: int
    data: bytes  # without its newline, at most 16 KiB of it
    end: int  # offset of the byte after its newline
    is_open: bool  # it has no newline yet


class LineJson(TypedDict):
    number: int
    offset: int
    text: str


class LinesJson(TypedDict):
    """A page of lines in the form of REST and the websocket."""

    total: int
    end: int  # offset after the last whole line
    read_to: int
    open: bool  # the last line may still grow
    lines: list[LineJson]


class LineIndex:
    """Extends the index of one log.  Only the agent does; losing the index only costs a rescan."""

    def __init__(self, log: Path, index: Path) -> None:
        self._log, self._index = log, index
        entries = read_index(index)
        self._entry_count = len(entries)
        self._cursor = _cursor_at(entries, LAST)

    @property
    def offset(self) -> int:
        """Up to where the log has been read."""
        return self._cursor.at

    def seen(self, *, at_end: bool = False) -> int:
        """Count of whole lines read so far; ``at_end`` also counts a last line without a newline."""
        return self._cursor.number + (at_end and self._cursor.open_line is not None)

    def extend(self, now_s: float, most_bytes: int = MOST_BYTES_A_TURN) -> int:
        """Index what was added since, about ``most_bytes``; returns the number of whole lines."""
        try:
            fd = open_plain(self._log)
        except OSError:
            return self._cursor.number
        try:
            self._scan(fd, now_s, most_bytes)
        finally:
            os.close(fd)
        return self._cursor.number

    def _scan(self, fd: int, now_s: float, most_bytes: int) -> None:
        new_entries: list[tuple[int, int, float]] = []
        before, read_bytes = -1, 0
        while before < self.offset and read_bytes < most_bytes:
            before = self.offset
            for block in self._cursor.read(fd, SCAN_BYTES):
                new_entries += [(offset, line, now_s) for offset, line in _indexed(block)]
            # A dropped part may be terabytes and costs nothing to skip.
            read_bytes += min(self.offset - before, SCAN_BYTES)
        if new_entries:
            append_behind(
                self._index, self._entry_count * ENTRY.itemsize, np.array(new_entries, ENTRY).tobytes()
            )
            self._entry_count += len(new_entries)


def _indexed(block: LineBlock) -> Iterator[tuple[int, int]]:
    """Offset and number of every 1,000th line that starts after a line of the block."""
    after = block.number + block.count
    first = (block.number // EVERY + 1) * EVERY
    if first > after:
        return
    ends = np.flatnonzero(np.frombuffer(block.data, np.uint8) == 10)
    for number in range(first, after, EVERY):
        yield block.offset + int(ends[number - block.number - 1]) + 1, number
    if after % EVERY == 0:
        yield block.end, after


def read_index(index: Path) -> NDArray[np.void]:
    """The whole entries, shape ``(entries,)``."""
    try:
        data = index.read_bytes()
    except FileNotFoundError:
        return np.empty(0, ENTRY)
    return np.frombuffer(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)


def _cursor_at(entries: NDArray[np.void], line: int) -> LineCursor:
    """A cursor at the last indexed line at or before ``line``."""
    place = int(np.searchsorted(entries["line"], line, side="right")) - 1
    return (
        LineCursor(int(entries["line"][place]), int(entries["offset"][place])) if place >= 0 else LineCursor()
    )


def count_lines(log: Path, index: Path, has_left: HasLeft = never) -> int:
    """Count the lines of a log, including a last one without a newline; 0 for a missing log.

    Raises:
        ReaderLeft: ``has_left`` became true.
    """
    entries = read_index(index)
    lines = int(entries["line"][-1]) if len(entries) and log.exists() else 0
    for block in read_blocks(log, index, LAST, has_left):
        lines = block.number + block.count
    return lines


def read_lines(log: Path, index: Path, first: int, count: int, has_left: HasLeft = never) -> list[LogLine]:
    """Lines by number (a negative number counts from the end), at most 5,000 or about 4 MiB.

    One marker line stands for each part that the cap dropped; the lines after it keep their numbers.

    Raises:
        ReaderLeft: ``has_left`` became true.
    """
    if first < 0:
        first = max(0, count_lines(log, index, has_left) + first)
    last = first + min(count, MOST_LINES)
    lines: list[LogLine] = []
    size_bytes = 0
    for block in read_blocks(log, index, first, has_left):
        if block.number >= last or len(lines) >= MOST_LINES or size_bytes >= MOST_BYTES:
            break
        block_lines = _cut(block, first, last)
        size_bytes += sum(len(line.data) for line in block_lines)
        lines += block_lines
    return lines[:MOST_LINES]


def show_lines(log: Path, index: Path, first: int, count: int, has_left: HasLeft = never) -> LinesJson:
    """The lines of ``read_lines`` as text that is safe to show, in the form of REST and the websocket."""
    total = count_lines(log, index, has_left)
    # Read after counting: a log that grows in between has at least the lines that were counted.
    lines = read_lines(log, index, max(0, total + first) if first < 0 else first, count, has_left)
    last = lines[-1] if lines else None
    return {
        "total": max(total, last.number + 1) if last else total,
        "end": 0 if last is None else last.offset if last.is_open else last.end,
        "read_to": 0 if last is None else last.end,
        "open": last is not None and last.is_open,
        "lines": [
            {"number": line.number, "offset": line.offset, "text": display_text(line.data)} for line in lines
        ],
    }


def read_blocks(log: Path, index: Path, first: int = 0, has_left: HasLeft = never) -> Iterator[LineBlock]:
    """Blocks of at most about a MiB, starting at the last indexed line at or before ``first``.

    One marker line stands for each part that the cap dropped; the lines after it keep their numbers.

    Raises:
        ReaderLeft: ``has_left`` became true.
    """
    entries = read_index(index)
    cursor = _cursor_at(entries, first)
    try:
        fd = open_plain(log)
    except OSError:
        return
    try:
        yield from _blocks(fd, cursor, entries, has_left)
    finally:
        os.close(fd)


def _blocks(fd: int, cursor: LineCursor, entries: NDArray[np.void], has_left: HasLeft) -> Iterator[LineBlock]:
    before, until, scan_bytes = -1, LAST, FIRST_SCAN_BYTES
    while before < cursor.at:
        if has_left():
            raise ReaderLeft("The reader left before the log was read.")
        if cursor.at == until:  # the next indexed line after a dropped part
            yield from cursor.end_line()
            cursor.number, until = int(entries["line"][np.searchsorted(entries["offset"], until)]), LAST
        before = cursor.at
        blocks = cursor.read(fd, min(scan_bytes, until - before))
        yield from blocks
        scan_bytes = min(2 * scan_bytes, SCAN_BYTES)
        if blocks and blocks[-1].is_mark:
            until = _renumber(fd, cursor, entries)
    if cursor.open_line is not None:
        yield cursor.open_line


def _renumber(fd: int, cursor: LineCursor, entries: NDArray[np.void]) -> int:
    """Number the lines after a dropped part, counting back from the next indexed line; returns its offset."""
    place = int(np.searchsorted(entries["offset"], cursor.at))
    if place == len(entries):
        return LAST
    until, ahead = int(entries["offset"][place]), LineCursor(0, cursor.at)
    before = -1
    while before < ahead.at < until:
        before = ahead.at
        ahead.read(fd, min(SCAN_BYTES, until - before))
    ahead.end_line()
    cursor.number = max(cursor.number, int(entries["line"][place]) - ahead.number)
    return until


def _cut(block: LineBlock, first: int, last: int) -> list[LogLine]:
    """The lines of a block from ``first`` (included) to ``last`` (excluded)."""
    number, offset = block.number, block.offset
    file = io.BytesIO(block.data)
    if first > number:
        if first >= number + block.count:
            return []
        ends = np.flatnonzero(np.frombuffer(block.data, np.uint8) == 10)
        offset += file.seek(int(ends[first - number - 1]) + 1)
        number = first
    lines: list[LogLine] = []
    for line in islice(file, last - number):  # unlike splitlines, splits at newlines only
        end = block.end if block.is_mark else offset + len(line)
        start, visible = visible_part(line)
        lines.append(LogLine(number, offset + start, visible, end, block.is_open))
        number, offset = number + 1, end
    return lines
