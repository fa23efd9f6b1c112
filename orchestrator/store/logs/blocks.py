"""Reads a log as blocks of whole lines, in one pass and with bounded memory.

A line ends at a newline.  After 16 KiB without a newline or a carriage return a line is split, never inside a
character, and each part gets a number of its own.  Of a longer line that carriage returns overwrite, only the last
state is shown.
"""

from dataclasses import dataclass

from orchestrator.store.logs.chunks import dropped_line, read_piece
from orchestrator.store.logs.text import LONGEST_LINE_BYTES, split_at


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a log, each with its newline; the last one may lack it."""

    number: int  # of the first line, from 0
    offset: int
    data: bytes
    end: int  # offset of the byte after it
    is_open: bool = False  # its only line may still grow
    is_mark: bool = False  # its only line stands for a dropped part

    @property
    def count(self) -> int:
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))


class LineCursor:
    """Reads a log from the start of a line to its end, and continues once the log has grown."""

    def __init__(self, number: int = 0, offset: int = 0) -> None:
        self.number = number  # of the open line
        self.offset = offset  # where the open line, or its last state, begins
        self.at = offset  # read up to here
        self._open = b""

    @property
    def open_line(self) -> LineBlock | None:
        """The line that has not ended yet, as far as it was read."""
        return LineBlock(self.number, self.offset, self._open, self.at, is_open=True) if self._open else None

    def read(self, fd: int, limit_bytes: int) -> list[LineBlock]:
        """Read one piece and return the lines that end in it.  At the end of the log ``at`` does not move.

        A marker line stands where the cap dropped a part of the log.
        """
        piece = read_piece(fd, self.at, limit_bytes)
        self.at = piece.next_offset
        if not piece.dropped_bytes:
            return self._split(self._open + piece.data)
        before = self.end_line()
        mark = LineBlock(self.number, self.offset, dropped_line(piece.dropped_bytes), self.at, is_mark=True)
        self.number, self.offset = self.number + 1, self.at
        return [*before, mark]

    def end_line(self) -> list[LineBlock]:
        """End the open line without a newline."""
        blocks = [self._take(self._open)] if self._open else []
        self._open = b""
        return blocks

    def _split(self, data: bytes) -> list[LineBlock]:
        begin, blocks = 0, []
        for end in (*split_places(data), data.rfind(b"\n") + 1):
            if end > begin:
                blocks.append(self._take(data[begin:end]))
                begin = end
        rest = data[begin:]
        skipped = _last_state(rest)
        self.offset += skipped
        self._open = rest[skipped:]
        return blocks

    def _take(self, data: bytes) -> LineBlock:
        block = LineBlock(self.number, self.offset, data, self.offset + len(data))
        self.number, self.offset = self.number + block.count, block.end
        return block


def split_places(data: bytes) -> list[int]:
    """Where too long lines are split; ``data`` starts with a line or with a state of one."""
    begin, places = 0, []
    while len(data) - begin > LONGEST_LINE_BYTES:
        reach = begin + LONGEST_LINE_BYTES + 1
        # Any line end within reach will do; the farthest newline advances by 16 KiB every second turn.
        end = data.rfind(b"\n", begin, reach)
        if end < 0:
            end = data.rfind(b"\r", begin, reach)
        if end >= 0:
            begin = end + 1
        else:
            begin = split_at(data, begin)
            places.append(begin)
    return places


def visible_part(line: bytes) -> tuple[int, bytes]:
    """Where the visible part of a line starts, and that part without its line end."""
    line = line.removesuffix(b"\n")
    start = _last_state(line)
    return start, line[start:].rstrip(b"\r")


def _last_state(line: bytes) -> int:
    """Where the last state of a line longer than 16 KiB starts, after a carriage return; 0 for a shorter line."""
    if len(line) <= LONGEST_LINE_BYTES:
        return 0
    start = line.rfind(b"\r", 0, len(line.rstrip(b"\r"))) + 1
    # Only a run of carriage returns makes a state longer than 16 KiB.
    return start if len(line) - start <= 2 * LONGEST_LINE_BYTES else len(line) - 1
