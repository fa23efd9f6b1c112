"""Images, histograms, tables and texts that runs report: files of a job, which are read as a stranger's."""

import errno
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, final

from orchestrator.exceptions import Sentence
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.layout import JobFolder

KINDS = ("image", "histogram", "table", "text")
INDEX = "index.jsonl"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
LARGEST_FILE_BYTES = 8 << 20  # as training/media.py writes them
LARGEST_INDEX_BYTES = 4 << 20
MOST_ENTRIES = 4_000  # of an attempt: what it reported, and what it gave to a tracker
LONGEST_NAME = 200
LARGEST_PIXELS = 4_096 * 4_096  # what a browser unpacks
WHOLE = 2**53  # numbers beyond it lose digits in browsers
_FILE = re.compile(r"(\d{6})\.(?:png|json)")


class NotReadable(Exception):
    """The file is not what its entry says."""


@dataclass(frozen=True, slots=True)
class Medium:
    """One image, histogram, table or text."""

    attempt: int
    number: int
    step: int
    time_s: float
    kind: str
    name: str


def list_media(job: JobFolder, attempts: list[int]) -> list[Medium]:
    """What attempts reported, in their order; lines of an index that say nothing are left out."""
    return [medium for attempt in attempts for medium in _read_index(job, attempt)]


def _read_index(job: JobFolder, attempt: int) -> Iterator[Medium]:
    try:
        text = _read(job, attempt, INDEX, LARGEST_INDEX_BYTES)
    except OSError:
        return
    for line in text.split(b"\n")[:MOST_ENTRIES]:
        if (medium := _read_line(line, attempt)) is not None:
            yield medium


def _read_line(line: bytes, attempt: int) -> Medium | None:
    try:
        entry = json.loads(line)
        file = _FILE.fullmatch(entry["file"])
        step, time_s, kind, name = (entry[key] for key in ("step", "time", "kind", "name"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_ours = (
        file is not None
        and type(step) is int
        and 0 <= step < WHOLE
        and type(time_s) in (int, float)
        and 0 <= time_s < 2**40
        and kind in KINDS
        and isinstance(name, str)
        and file[0].endswith(".png") == (kind == "image")
    )
    return (
        Medium(attempt, int(file[1]), step, time_s, kind, writable(name)[:LONGEST_NAME])
        if file and is_ours
        else None
    )


def read_image(job: JobFolder, medium: Medium) -> bytes:
    """The PNG of an image.

    Raises:
        NotReadable: it is gone, too large, or no PNG.
    """
    data = _content(job, medium, "png")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    if not data.startswith(PNG_MAGIC) or data[12:16] != b"IHDR":
        raise NotReadable("The file is not a PNG.")
    if width * height > LARGEST_PIXELS:
        raise NotReadable(Sentence("The image has {width} x {height} pixels.", width=width, height=height))
    return data


@final
class Histogram(TypedDict):
    """Counts between edges, which are one more."""

    counts: list[int]
    edges: list[float]
    not_finite: int  # values without a place


@final
class Table(TypedDict):
    """The first rows of a table."""

    columns: list[str]
    rows: list[list[str | int | float | bool | None]]
    rows_total: int


@final
class Text(TypedDict):
    """The beginning of a text."""

    text: str
    characters: int  # of the whole


Value: TypeAlias = Histogram | Table | Text


def read_value(job: JobFolder, medium: Medium) -> Value:
    """The values of a histogram, table or text.

    Raises:
        NotReadable: it is gone, too large, or not what its kind says.
    """
    try:
        value = json.loads(_content(job, medium, "json"))
        match medium.kind:
            case "histogram":
                return _histogram(value)
            case "table":
                return _table(value)
            case _:
                return _text(value)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise NotReadable(Sentence("The file is not a {kind}.", kind=medium.kind)) from error


def _histogram(value: Any) -> Histogram:
    counts, edges = [int(each) for each in value["counts"]], [float(each) for each in value["edges"]]
    left_out = int(value["not_finite"])
    fits = (
        len(edges) == len(counts) + 1 <= 1_001 and all(map(math.isfinite, edges)) and edges == sorted(edges)
    )
    if not fits or not all(0 <= each < WHOLE for each in (*counts, left_out)):
        raise ValueError
    return {"counts": counts, "edges": edges, "not_finite": left_out}


def _table(value: Any) -> Table:
    columns = [writable(str(each))[:LONGEST_NAME] for each in value["columns"][:50]]
    rows = [[_cell(each) for each in row[: len(columns)]] for row in value["rows"][:1_000]]
    return {
        "columns": columns,
        "rows": rows,
        "rows_total": min(WHOLE, max(len(rows), int(value["rows_total"]))),
    }


def _cell(value: Any) -> str | int | float | bool | None:
    is_plain = value is None or isinstance(value, bool)
    if is_plain or (isinstance(value, (int, float)) and -WHOLE < value < WHOLE):  # no NaN, which JSON has not
        return value  # type: ignore[no-any-return]
    return writable(str(value))[:500]


def _text(value: Any) -> Text:
    text = writable(str(value["text"]))[: 64 << 10]
    return {"text": text, "characters": min(WHOLE, max(len(text), int(value["characters"])))}


def _content(job: JobFolder, medium: Medium, ending: str) -> bytes:
    try:
        return _read(job, medium.attempt, f"{medium.number:06}.{ending}", LARGEST_FILE_BYTES)
    except OSError as error:
        raise NotReadable(Sentence("The file cannot be read ({why}).", why=str(error.strerror))) from error


def _read(job: JobFolder, attempt: int, name: str, most_bytes: int) -> bytes:
    """A regular file in a folder that the job writes: links and pipes are not followed, and no more is read."""
    media = job.attempt(attempt).media
    fd = open_beneath(media.parent, f"{media.name}/{name}")
    try:
        if os.fstat(fd).st_size > most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
        data = b""
        while len(data) < most_bytes and (part := os.read(fd, most_bytes - len(data))):
            data += part
        return data
    finally:
        os.close(fd)


def writable(text: str) -> str:
    """A text with a mark in the place of half characters, which no answer can hold."""
    return text.encode(errors="replace").decode()
