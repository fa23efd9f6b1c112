"""Read TensorBoard event files of unchanged scripts as points; nothing in them is trusted.

A file is a row of records (the TFRecord framing of TensorFlow's ``core/lib/io/record_writer.cc``): length
(8 bytes, little endian), masked CRC-32C of the length, data, masked CRC-32C of the data.  The data is an
``Event`` of ``event.proto``: wall_time = 1 (double), step = 2, summary = 5 with values = 1, each with tag = 1
and simple_value = 2 (float), or tensor = 8 as newer writers have it.  Reading these needs no TensorBoard.
"""

import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from orchestrator.agent.telemetry.metric_lines import INT64_LAST, ParsedBatch, short_name
from orchestrator.store.metrics.writer import Point

MARK = ".tfevents."
MOST_RECORD_BYTES = 1 << 20
MOST_FILES = 32
MOST_ENTRIES = 5_000  # looked at in one search
DEEPEST = 6
_HEAD, _TAIL_BYTES = struct.Struct("<QI"), 4
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_TIME = re.compile(r"\d{10}\.\d+")  # str(time.time())
_FLOAT_TYPE, _DOUBLE_TYPE = 1, 2  # DT_FLOAT, DT_DOUBLE


class BrokenFile(ValueError):
    """What follows in a file cannot be read."""


def find_files(folders: list[Path], since_s: float) -> list[Path]:
    """Event files below ``folders`` that were written since a time; links are not followed.

    Those nearest to the top come first, since writers add folders below the one of the run: ``runs/first/val``.
    """
    event_files: list[Path] = []
    remaining = MOST_ENTRIES
    for top in folders:
        for folder, names, files in os.walk(top):
            remaining -= len(names) + len(files)
            if remaining < 0 or len(event_files) >= MOST_FILES:
                return sorted(event_files[:MOST_FILES], key=_depth_and_name)
            if len(Path(folder).relative_to(top).parts) >= DEEPEST:
                names.clear()
            names[:] = [name for name in names if not name.startswith(".") and name != "node_modules"]
            event_files += [
                Path(folder, name) for name in files if MARK in name and _is_new(folder, name, since_s)
            ]
    return sorted(event_files[:MOST_FILES], key=_depth_and_name)


def _depth_and_name(path: Path) -> tuple[int, Path]:
    return len(path.parts), path


def read_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each whole record and the offset of the next; an incomplete record at the end is left for the next call.

    Raises:
        BrokenFile: the bytes are not records.
    """
    offset = 0
    while len(data) - offset >= _HEAD.size:
        length, check = _HEAD.unpack_from(data, offset)
        if length > MOST_RECORD_BYTES or check != masked_crc(data[offset : offset + 8]):
            raise BrokenFile(f"there is no record at byte {offset}")
        begin = offset + _HEAD.size
        if len(data) < begin + length + _TAIL_BYTES:
            return
        offset = begin + length + _TAIL_BYTES
        yield offset, data[begin : begin + length]


def read_event(record: bytes, prefix: str, since_s: float, now: float, batch: ParsedBatch) -> None:
    """Add the scalars of an event to ``batch``; events from before ``since_s`` belong to another attempt.

    Raises:
        BrokenFile: the record is not an event.
    """
    time_s, step, values = now, 0, []
    for number, value in _fields(record):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (time_s,) = _DOUBLE.unpack(value)
        elif number == 2 and isinstance(value, int):
            step = value if value <= INT64_LAST else value - (1 << 64)
        elif number == 5 and isinstance(value, bytes):
            values += [part for kind, part in _fields(value) if kind == 1 and isinstance(part, bytes)]
    if not (since_s - 1 <= time_s <= now + 86_400):
        return
    for value in values:
        if (scalar := _scalar(value)) is None:
            continue
        name = short_name(f"{prefix}{scalar[0]}")
        if not name:
            continue
        if not math.isfinite(scalar[1]):
            batch.nonfinite += 1
            batch.first_nonfinite = batch.first_nonfinite or (name, step)
        batch.points.append(Point(name, step, time_s, scalar[1]))
        batch.last_step = step if batch.last_step is None else max(step, batch.last_step)


def prefix_of(path: Path, first: Path) -> str:
    """The prefix for a file's tags: its folder, relative to the folder of the first file found.

    Writers put curves that belong together (train, validation) into one folder each.  A folder that is named by the
    time, as ``add_hparams`` of PyTorch makes one, says nothing.
    """
    try:
        parts = path.parent.relative_to(first.parent).parts
    except ValueError:
        parts = (path.parent.name,)
    return "".join(f"{part}/" for part in parts if not _TIME.fullmatch(part))


def _scalar(value: bytes) -> tuple[str, float] | None:
    tag, number = "", None
    for field, part in _fields(value):
        if not isinstance(part, bytes):
            continue
        if field == 1:
            tag = part[:1000].decode(errors="replace")
        elif field == 2 and len(part) == 4:
            (number,) = _FLOAT.unpack(part)
        elif field == 8:
            number = _tensor(part)
    return (tag, number) if number is not None else None


def _tensor(value: bytes) -> float | None:
    """The number in a one-element tensor."""
    kind, contents = 0, b""
    for field, part in _fields(value):
        if field == 1 and isinstance(part, int):
            kind = part
        elif field in (4, 5, 6) and isinstance(part, bytes):
            contents = part
    unpacker = {_FLOAT_TYPE: _FLOAT, _DOUBLE_TYPE: _DOUBLE}.get(kind)
    if unpacker is None or len(contents) != unpacker.size:
        return None
    number: float = unpacker.unpack(contents)[0]
    return number


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a protobuf message: varints as numbers, everything else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise BrokenFile(f"a field of the unknown kind {kind}")
        if at + size > len(message):
            raise BrokenFile("a field beyond the end")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise BrokenFile("a number beyond the end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BrokenFile("a number of more than 64 bits")


def _is_new(folder: str, name: str, since_s: float) -> bool:
    try:
        return Path(folder, name).lstat().st_mtime >= since_s
    except OSError:
        return False


def _make_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return tuple(table)


_TABLE = _make_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C (RFC 3720), rotated and shifted as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
