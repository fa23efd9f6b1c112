"""Logs by byte offset, with the holes that the cap left in them, and as text that is safe to show."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.store.plain_file import open_plain

LONGEST_LINE_BYTES = 16 << 10
BLOCK_BYTES = 4096
TAIL_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of a log from ``offset`` on; the next chunk begins at ``next_offset``.

    Where bytes were dropped, ``data`` has a marker line in their place and ``dropped_bytes`` their count,
    so ``next_offset - offset`` may differ from ``len(data)``.
    """

    offset: int
    next_offset: int
    data: bytes
    size: int
    dropped_bytes: int = 0


def read_log(path: Path, offset: int, limit_bytes: int, *, whole_lines: bool = False) -> LogChunk:
    """Read at most ``limit_bytes``; a negative offset counts from the end; a log that is missing, or that the job
    replaced by something else than a file, is empty.

    A chunk never ends inside a UTF-8 character, unless nothing else is left of the file.

    Args:
        limit_bytes: at least 4.
        whole_lines: end after the last newline, where there is one in reach.
    """
    try:
        fd = open_plain(path)
    except OSError:
        return LogChunk(0, 0, b"", 0)
    try:
        size = os.fstat(fd).st_size
        if offset < 0:
            offset = _start_of_character(fd, max(0, size + offset))
        return _read_chunk(fd, min(offset, size), size, max(4, limit_bytes), whole_lines=whole_lines)
    finally:
        os.close(fd)


def read_piece(fd: int, offset: int, limit_bytes: int) -> LogChunk:
    """Bytes of an open log up to the next part that was dropped; at such a part no ``data``, but its ``dropped_bytes``."""
    size = os.fstat(fd).st_size
    if offset >= size:
        return LogChunk(offset, offset, b"", size)
    data = b""
    end = next_data(fd, offset, size)
    if end == offset:
        hole = _next_hole(fd, offset, size)
        data = os.pread(fd, min(limit_bytes, hole - offset), offset)
        end = offset + len(data)
        if end == hole < size:
            data = data.rstrip(b"\0")  # of the block in which the hole begins
            end = offset + len(data) if data else next_data(fd, hole, size)
    if data:
        return LogChunk(offset, end, data, size)
    end = _skip_zeros(fd, end, size) if offset < end < size else end
    return LogChunk(offset, end, b"", size, end - offset)


def read_tail(path: Path, lines: int, limit_bytes: int = TAIL_BYTES) -> LogChunk:
    """The last lines of a log, at most ``limit_bytes`` of them."""
    chunk = read_log(path, -limit_bytes, limit_bytes + 4)
    at = len(chunk.data.removesuffix(b"\n"))
    for _ in range(lines):
        at = chunk.data.rfind(b"\n", 0, at)
        if at < 0:
            return chunk
    data = chunk.data[at + 1 :]
    return LogChunk(chunk.next_offset - len(data), chunk.next_offset, data, chunk.size, chunk.dropped_bytes)


def _read_chunk(fd: int, offset: int, size: int, limit: int, *, whole_lines: bool) -> LogChunk:
    data, at = bytearray(), offset  # bytes would be copied at each of a thousand holes
    dropped = 0
    while at < size:
        start = next_data(fd, at, size)
        if start > at:
            end = _skip_zeros(fd, start, size)
            dropped += end - at
            del data[len(data.rstrip(b"\0")) :]
            data += b"\n" if data and not data.endswith(b"\n") else b""
            data += dropped_line(end - at)
            at = end
            continue
        room = limit - len(data)
        if room <= 0:
            break
        end = _next_hole(fd, at, size)
        piece = os.pread(fd, min(room, end - at), at)
        if not piece:  # cut short by someone else just now
            break
        data += piece
        at += len(piece)
    kept = _whole_end(data, at_end=at >= size, whole_lines=whole_lines)
    return LogChunk(offset, at - (len(data) - kept), bytes(data[:kept]), size, dropped)


def next_data(fd: int, at: int, size: int) -> int:
    """Where data begins at or after ``at``; the end of the file where there is none."""
    try:
        return min(size, os.lseek(fd, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == 6:  # ENXIO: only a hole is left
            return size
        return at  # a file system without holes


def _next_hole(fd: int, at: int, size: int) -> int:
    try:
        return min(size, max(at + 1, os.lseek(fd, at, os.SEEK_HOLE)))
    except OSError:
        return size


def _skip_zeros(fd: int, at: int, size: int) -> int:
    """The end of the zeros that a punched hole leaves in its last block."""
    block = os.pread(fd, min(BLOCK_BYTES, size - at), at)
    return at + len(block) - len(block.lstrip(b"\0"))


def dropped_line(count: int) -> bytes:
    """The line that stands where bytes were dropped."""
    amount = f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{max(1, count >> 10)} KiB"
    return f"[... {amount} dropped here ...]\n".encode()


def _whole_end(data: bytes | bytearray, *, at_end: bool, whole_lines: bool) -> int:
    """How much of a chunk may be given out without cutting a line or a character."""
    if whole_lines and not data.endswith(b"\n") and (newline := data.rfind(b"\n")) >= 0:
        return newline + 1
    cut = len(data) - unfinished_bytes(data)
    # Half a character that is all there is will not be finished any more.
    return len(data) if at_end and cut == 0 else cut


def unfinished_bytes(data: bytes | bytearray) -> int:
    """How many bytes at the end begin a UTF-8 character without ending it (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needs > back and byte < 0xF8 else 0
        if byte < 0x80:
            return 0
    return 0


def _start_of_character(fd: int, at: int) -> int:
    if at == 0:
        return 0
    head = os.pread(fd, 3, at)
    return at + len(head) - len(head.lstrip(bytes(range(0x80, 0xC0))))


# Text for pages

OSC = r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links (8), clipboard (52)
STRINGS = r"\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"
CSI = r"\x1b\[[0-?]*[ -/]*[@-~]?"
OTHER = r"\x1b[ -/]*[0-~]?"
ESCAPES = re.compile(f"{OSC}|{STRINGS}|{CSI}|{OTHER}")
COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
ODD_CONTROLS = {
    code: None for code in [*range(0x01, 0x20), *range(0x7F, 0xA0)] if code not in (9, 10, 13, 27)
}
ODD_CONTROLS |= {0: 0xFFFD}  # type: ignore[dict-item]  # None removes, a number replaces
OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\r\n])")
LONG_LINE = re.compile(rf"[^\n]{{{LONGEST_LINE_BYTES}}}(?=[^\n])")


def display_text(data: bytes) -> str:
    """Log bytes as text for a page: still to be escaped as HTML, but without anything that acts on a terminal.

    Colours (SGR) stay; cursor movements, titles, links and clipboard writes go.  NUL and what is not UTF-8
    become U+FFFD.  Of a line that was written over by carriage returns the last state stays.  Lines are
    split at 16 Ki characters.
    """
    text = data.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ESCAPES.sub(_keep_colour, text)
    text = text.translate(ODD_CONTROLS)
    if "\r" in text:
        text = re.sub(r"\r+(?=\n|$)", "", text)
        text = OVERWRITTEN.sub("", text)
    return LONG_LINE.sub(lambda found: found[0] + "\n", text)


def _keep_colour(found: re.Match[str]) -> str:
    return found[0] if COLOUR.fullmatch(found[0]) else ""


def split_lines(data: bytes, carry: bytes = b"", *, at_returns: bool = False) -> tuple[list[bytes], bytes]:
    """Whole lines without their newline, and the rest to hand in with the next data.

    Lines are split at 16 KiB, never inside a character, so the rest is not longer than that.

    Args:
        at_returns: a carriage return ends a line too (the states of a progress bar).
    """
    joined = carry + data
    if at_returns:
        joined = joined.replace(b"\r", b"\n")
    *whole, rest = joined.split(b"\n")
    lines = [part for line in whole for part in _parts(line.rstrip(b"\r"))]
    *parts, rest = _parts(rest)
    return lines + parts, rest


def _parts(line: bytes) -> list[bytes]:
    begin, parts = 0, []
    while len(line) - begin > LONGEST_LINE_BYTES:
        end = split_at(line, begin)
        parts.append(line[begin:end])
        begin = end
    return [*parts, line[begin:]]


def split_at(data: bytes, begin: int) -> int:
    """Where a line that begins at ``begin`` and is longer than 16 KiB is split: before a character, not inside it."""
    end = begin + LONGEST_LINE_BYTES
    return end - unfinished_bytes(data[end - 3 : end])
