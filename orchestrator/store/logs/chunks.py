"""Reads logs by byte offset, with the holes that the log cap left."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.store.files.untrusted import open_plain
from orchestrator.store.logs.text import unfinished_bytes

BLOCK_BYTES = 4096
TAIL_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of a log starting at ``offset``; the next chunk starts at ``next_offset``.

    In place of dropped bytes ``data`` holds a marker line, and ``dropped_bytes`` counts them, so
    ``next_offset - offset`` may differ from ``len(data)``.
    """

    offset: int
    next_offset: int
    data: bytes
    size: int
    dropped_bytes: int = 0
    is_cut: bool = False  # of ``read_tail``: begins within a line


def read_log(path: Path, offset: int, limit_bytes: int, *, whole_lines: bool = False) -> LogChunk:
    """Read at most ``limit_bytes``; a negative offset counts from the end.

    A log that is missing, or that the job replaced by something other than a file, is empty.  A chunk never ends
    inside a UTF-8 character, unless nothing else of the file remains.

    Args:
        limit_bytes: at least 4.
        whole_lines: end after the last newline within reach, if there is one.
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
    """Bytes of an open log up to the next dropped part; at a dropped part no ``data``, only ``dropped_bytes``."""
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
    """The last lines of a log, at most ``limit_bytes``."""
    chunk = read_log(path, -limit_bytes, limit_bytes + 4)
    at = len(chunk.data.removesuffix(b"\n"))
    for _ in range(lines):
        at = chunk.data.rfind(b"\n", 0, at)
        if at < 0:
            return replace(chunk, is_cut=chunk.offset > 0)
    data = chunk.data[at + 1 :]
    return LogChunk(chunk.next_offset - len(data), chunk.next_offset, data, chunk.size, chunk.dropped_bytes)


def _read_chunk(fd: int, offset: int, size: int, limit: int, *, whole_lines: bool) -> LogChunk:
    data, at = bytearray(), offset  # a bytes object would be copied at each of a thousand holes
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
        if not piece:  # truncated by the job just now
            break
        data += piece
        at += len(piece)
    whole_bytes = _whole_end(data, at_end=at >= size, whole_lines=whole_lines)
    return LogChunk(offset, at - (len(data) - whole_bytes), bytes(data[:whole_bytes]), size, dropped)


def next_data(fd: int, at: int, size: int) -> int:
    """Where data starts at or after ``at``; the size of the file if only a hole follows."""
    try:
        return min(size, os.lseek(fd, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == 6:  # ENXIO: only a hole follows
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
    """The marker line in place of dropped bytes."""
    amount = f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{max(1, count >> 10)} KiB"
    return f"[... {amount} dropped here ...]\n".encode()


def _whole_end(data: bytes | bytearray, *, at_end: bool, whole_lines: bool) -> int:
    """How much of a chunk can be returned without cutting a line or a character."""
    if whole_lines and not data.endswith(b"\n") and (newline := data.rfind(b"\n")) >= 0:
        return newline + 1
    cut = len(data) - unfinished_bytes(data)
    # Half a character that is all there is will never be completed.
    return len(data) if at_end and cut == 0 else cut


def _start_of_character(fd: int, at: int) -> int:
    if at == 0:
        return 0
    head = os.pread(fd, 3, at)
    return at + len(head) - len(head.lstrip(bytes(range(0x80, 0xC0))))
