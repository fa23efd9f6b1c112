"""Images, histograms, tables and texts of a step, as files that the job's page shows.

Each is a file of plain data in the folder that ``BERTH_MEDIA_DIR`` names (PNG, or JSON), and a line in its ``index.jsonl``.
No file is ever unpickled.  Imports NumPy, and no torch.
"""

import json
import math
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER_VARIABLE: Final = "BERTH_MEDIA_DIR"
KINDS: Final = ("image", "histogram", "table", "text")
INDEX: Final = "index.jsonl"
_OTHER_ENDING: Final = {"png": "json", "json": "png"}
PNG_MAGIC: Final = b"\x89PNG\r\n\x1a\n"

MOST_FILES = 2_000  # of an attempt
MOST_BYTES = 256 << 20  # of an attempt
LARGEST_FILE_BYTES = 8 << 20
LONGEST_SIDE = 2_048  # of an image, in pixels
MOST_WAITING = 1_000
MOST_WAITING_BYTES = 256 << 20  # limits memory while the disk hangs
BINS, MOST_BINS = 64, 1_000
MOST_NUMBERS = 20_000_000  # that are copied from the training at once
MOST_ROWS, MOST_COLUMNS, LONGEST_CELL = 1_000, 50, 500
LONGEST_TEXT = 64 << 10
LONGEST_NAME = 200


class Refused(ValueError):
    """A value that cannot be kept; the sentence says why."""


class Item(NamedTuple):
    """A value that was copied from the training, and how to make it into the bytes of a file."""

    kind: str
    name: str
    step: int
    time_s: float
    copy: "Copy"


class Copy(NamedTuple):
    """A copied value, by the function that makes a file's bytes of it, and how much memory it holds."""

    encode: Callable[[], bytes]
    held_bytes: int


class Counted(NamedTuple):
    """A histogram that was counted already."""

    counts: Sequence[int]
    edges: Sequence[float]


class Media:
    """Takes values on the training's thread, and writes them on the reporter's."""

    def __init__(self, folder: Path | None = None) -> None:
        named = os.environ.get(FOLDER_VARIABLE)
        self._folder = folder or (Path(named) if named else None)
        self._waiting: deque[Item] = deque()
        self._count, self._bytes, self._number = 0, 0, 0
        self._taken_bytes, self._freed_bytes = 0, 0  # each is counted by one thread alone
        self._problems: deque[tuple[str, str]] = deque()

    def take(self, kind: str, value: object, step: int, time_s: float) -> None:
        """Copy one value, or values by name.  Never raises: ``problems`` has what cannot be kept."""
        for name, each in _by_name(kind, value):
            self.take_one(kind, name, lambda each=each: each, step, time_s)  # type: ignore[misc]

    def take_one(self, kind: str, name: str, read: Callable[[], object], step: int, time_s: float) -> None:
        """Copy the value that ``read`` returns.  Never raises, like ``take``."""
        try:
            held_bytes = self._taken_bytes - self._freed_bytes
            if len(self._waiting) >= MOST_WAITING or held_bytes >= MOST_WAITING_BYTES:
                raise Refused(f"{len(self._waiting)} are waiting for the disk already; report fewer of them")
            if self._count + len(self._waiting) >= MOST_FILES:
                raise Refused(f"an attempt keeps {MOST_FILES:,}; report every so many steps")
            copy = _COPIES[kind](read())
            self._taken_bytes += copy.held_bytes
            self._waiting.append(Item(kind, name[:LONGEST_NAME], step, time_s, copy))
        except Exception as error:  # noqa: BLE001 -- values of other people's types may raise anything
            self._problems.append((name, _words_of(error)))

    def write(self) -> None:
        """Write what waits; a full disk loses it and becomes a problem."""
        for _ in range(len(self._waiting)):
            item = self._waiting.popleft()
            try:
                self._write(item)
            except Exception as error:  # noqa: BLE001 -- as above
                self._problems.append((item.name, _words_of(error)))
            finally:
                self._freed_bytes += item.copy.held_bytes

    def problems(self) -> list[tuple[str, str]]:
        """(name, reason) of what was not kept since the last call."""
        return [self._problems.popleft() for _ in range(len(self._problems))]

    def _write(self, item: Item) -> None:
        if self._folder is None:
            return  # outside of Berth nobody shows them
        data = item.copy.encode()
        if len(data) > LARGEST_FILE_BYTES:
            raise Refused(f"it has {len(data) >> 20} MiB; {LARGEST_FILE_BYTES >> 20} MiB is the most")
        if self._bytes + len(data) > MOST_BYTES:
            raise Refused(f"an attempt keeps {MOST_BYTES >> 20} MiB of them, which are full")
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._write_file(self._folder, "png" if item.kind == "image" else "json", data)
        line = {"step": item.step, "time": round(item.time_s, 3), "kind": item.kind, "name": item.name}
        with (self._folder / INDEX).open("ab", buffering=0) as index:
            index.write(_json({**line, "file": file}) + b"\n")
        self._count += 1
        self._bytes += len(data)

    def _write_file(self, folder: Path, ending: str, data: bytes) -> str:
        """Write a file of the next free number: a tracker's values and other processes of the job have theirs beside it."""
        while True:
            name, other = (f"{self._number:06}.{each}" for each in (ending, _OTHER_ENDING[ending]))
            self._number += 1
            if (folder / other).exists():
                continue
            with suppress(FileExistsError), (folder / name).open("xb") as file:
                file.write(data)
                return name


def is_media(kind: str, value: object) -> bool:
    """Whether a reported value is one of ours: a number with such a name stays a metric."""
    if kind not in KINDS or isinstance(value, (int, float)):
        return False
    count = getattr(value, "numel", None) or getattr(value, "size", None)
    count = count() if callable(count) else count
    return count != 1 or kind == "image"


def _by_name(kind: str, value: object) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and not (kind == "table" and _is_table(value)):
        return [(str(name), each) for name, each in value.items()]
    return [(kind, value)]


def _is_table(value: Mapping[Any, Any]) -> bool:
    """Whether a dict is a table itself: its columns, or "columns" and "rows"."""
    return set(value) == {"columns", "rows"} or all(
        isinstance(column, Sequence)
        and not isinstance(column, str)
        and not any(isinstance(cell, (Mapping, Sequence)) and not isinstance(cell, str) for cell in column)
        for column in value.values()
    )


def _array(value: Any) -> Any:
    """A copy as a NumPy array; tensors are read from their device now, because they may change."""
    import numpy as np

    numbers = math.prod(getattr(value, "shape", ()) or (1,))
    if numbers > MOST_NUMBERS:
        raise Refused(f"it has {numbers:,} numbers, and {MOST_NUMBERS:,} is the most; report a part of them")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    return np.array(value)


def _copy_image(value: Any) -> Copy:
    if isinstance(value, (str, os.PathLike)):
        value = Path(value).read_bytes()
    if isinstance(value, bytes):
        return Copy(lambda: _checked_png(value), len(value))
    if hasattr(value, "savefig"):  # a figure of matplotlib
        from io import BytesIO

        buffer = BytesIO()
        value.savefig(buffer, format="png")
        return Copy(lambda: _checked_png(buffer.getvalue()), buffer.tell())
    pixels = _array(value)
    if pixels.dtype.kind not in "buif":
        raise Refused(f"an image has numbers, not {pixels.dtype}")
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)  # channels first, as torch has them
    shape = "x".join(map(str, pixels.shape))
    if (
        pixels.ndim not in (2, 3)
        or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4))
        or not pixels.size
    ):
        raise Refused(
            f"an image is height x width, with 1, 3 or 4 channels first or last; this is {shape or 'a number'}"
        )
    if max(pixels.shape[:2]) > LONGEST_SIDE:
        raise Refused(f"an image has at most {LONGEST_SIDE} pixels a side; this is {shape}")
    small = _bytes_of(pixels)
    return Copy(lambda: _png(small), small.nbytes)


def _bytes_of(pixels: Any) -> Any:
    """Pixels as bytes: floats from 0 to 1, integers from 0 to 255."""
    import numpy as np

    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * 255
    if not np.isfinite(pixels).all():
        raise Refused("the image has NaN or infinite values")
    low, high = float(pixels.min()), float(pixels.max())
    most = 1.0 if pixels.dtype.kind == "f" else 255
    if low < 0 or high > most:
        raise Refused(
            f"values of a {pixels.dtype} image go from 0 to {most:g}; these from {low:g} to {high:g}"
        )
    return np.rint(pixels * (255 / most)).astype(np.uint8)


def _png(pixels: Any) -> bytes:
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    colours = {1: 0, 3: 2, 4: 6}[channels]
    rows = pixels.reshape(height, width * channels)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)  # filter 0: as they are
    head = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b""))
    return PNG_MAGIC + b"".join(_chunk(*part) for part in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _checked_png(data: bytes) -> bytes:
    if not data.startswith(PNG_MAGIC):
        raise Refused("a file given as an image has to be a PNG")
    return data


def _copy_histogram(value: Any) -> Copy:
    import numpy as np

    if isinstance(value, Counted):
        return _copy_counted(value)
    numbers = _array(value).ravel()
    if numbers.dtype.kind not in "buif":
        raise Refused(f"a histogram is made of numbers, not {numbers.dtype}")
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    if not finite.size:
        raise Refused("none of its values is finite" if numbers.size else "it has no values")

    def encode() -> bytes:
        counts, edges = np.histogram(finite, bins=BINS)
        left_out = int(numbers.size - finite.size)
        return _json({"counts": counts.tolist(), "edges": edges.tolist(), "not_finite": left_out})

    return Copy(encode, finite.nbytes)


def _copy_counted(value: Counted) -> Copy:
    counts, edges = [int(each) for each in value.counts], [float(each) for each in value.edges]
    if len(edges) != len(counts) + 1 or not all(map(math.isfinite, edges)) or edges != sorted(edges):
        raise Refused("a histogram has one edge more than counts, and its edges rise")
    if len(counts) > MOST_BINS:
        raise Refused(f"a histogram has at most {MOST_BINS} bins; this has {len(counts)}")
    body = {"counts": counts, "edges": edges, "not_finite": 0}
    return Copy(lambda: _json(body), 64 * len(edges))


def _copy_table(value: Any) -> Copy:
    columns, rows = _columns_and_rows(value)
    if len(columns) > MOST_COLUMNS:
        raise Refused(f"a table has at most {MOST_COLUMNS} columns; this has {len(columns)}")
    cells = [[_cell(each) for each in row] for row in rows[:MOST_ROWS]]
    body = {"columns": [str(each)[:LONGEST_NAME] for each in columns], "rows": cells, "rows_total": len(rows)}
    return Copy(lambda: _json(body), 100 * len(cells) * len(columns))


def _columns_and_rows(value: Any) -> tuple[list[Any], list[Any]]:
    if hasattr(value, "columns") and hasattr(value, "values"):  # a frame of pandas
        return list(value.columns), value.values.tolist()
    if isinstance(value, Mapping):
        if set(value) == {"columns", "rows"}:
            return list(value["columns"]), list(value["rows"])
        return list(value), [list(row) for row in zip(*value.values(), strict=True)]
    rows = list(value)
    if rows and isinstance(rows[0], Mapping):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return names, [[row.get(name) for name in names] for row in rows]
    if rows and isinstance(rows[0], str):
        raise Refused("a table is a list of rows, a dict of columns, or a data frame")
    width = max((len(row) for row in rows), default=0)
    return [str(number) for number in range(width)], rows


def _cell(value: Any) -> str | int | float | bool | None:
    if hasattr(value, "item"):  # a number of NumPy or torch
        with suppress(ValueError, RuntimeError):
            value = value.item()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:LONGEST_CELL]


def _copy_text(value: Any) -> Copy:
    if not isinstance(value, str):
        raise Refused(f"a text is a str, not {type(value).__name__}")
    body = {"text": value[:LONGEST_TEXT], "characters": len(value)}
    return Copy(lambda: _json(body), len(value[:LONGEST_TEXT]))


_COPIES: Final[Mapping[str, Callable[[Any], Copy]]] = {
    "image": _copy_image,
    "histogram": _copy_histogram,
    "table": _copy_table,
    "text": _copy_text,
}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _words_of(error: Exception) -> str:
    return str(error)[:300] if isinstance(error, Refused) else f"{type(error).__name__}: {error}"[:300]
