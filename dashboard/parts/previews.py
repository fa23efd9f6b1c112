"""What a page shows of a file that a job wrote.  Its text is data: templates escape it."""

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO, Literal

from django.utils.translation import gettext as _

from orchestrator.api.http.downloads import IMAGES
from orchestrator.store.logs.text import COLOUR, display_text

READ_BYTES = 256 << 10
IMAGE_BYTES = 32 << 20
MOST_ROWS = 200
MOST_COLUMNS = 40
LONGEST_CELL = 200
LONGEST_JSON = 1 << 20  # indenting deep JSON multiplies its length

TABLES = {".csv": ",;\t|", ".tsv": "\t"}  # the separators that may be meant
TEXTS = frozenset(
    {
        ".txt",
        ".md",
        ".markdown",
        ".rst",
        ".log",
        ".json",
        ".jsonl",
        ".ndjson",
        ".yaml",
        ".yml",
        ".toml",
        ".ini",
        ".cfg",
        ".py",
        ".sh",
        ".xml",
        ".html",
        ".tex",
    }
)


@dataclass(frozen=True, slots=True)
class Preview:
    kind: Literal["image", "table", "text", "none"]
    text: str = ""
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    is_cut: bool = False  # the file has more than is shown
    why: str = ""  # nothing is shown


def has_preview(path: str) -> bool:
    """Whether files with this name are shown on a page."""
    suffix = _suffix(path)
    return suffix in IMAGES or suffix in TABLES or suffix in TEXTS


def read_preview(path: str, file: BinaryIO, size_bytes: int) -> Preview:
    """Read the beginning of a file as its name says."""
    suffix = _suffix(path)
    if not size_bytes:
        return Preview("none", why=_("The file is empty."))
    if suffix in IMAGES:
        is_large = size_bytes > IMAGE_BYTES
        return (
            Preview("none", why=_("The picture is too large for a page.")) if is_large else Preview("image")
        )
    data = file.read(READ_BYTES + 1)
    is_cut = len(data) > READ_BYTES
    data = _whole_lines(data[:READ_BYTES]) if is_cut else data
    if b"\0" in data or not has_preview(path):
        return Preview("none", why=_("The file is not text that a page can show."))
    if suffix in TABLES and (table := _read_table(data, TABLES[suffix], is_cut=is_cut)) is not None:
        return table
    if suffix == ".json" and not is_cut and (text := _indented(data)) is not None:
        return Preview("text", text)
    return Preview("text", COLOUR.sub("", display_text(data)), is_cut=is_cut)


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _whole_lines(data: bytes) -> bytes:
    """Leave out the last line, which is incomplete, unless it is the only one."""
    return data[: data.rfind(b"\n") + 1] or data


def _read_table(data: bytes, separators: str, *, is_cut: bool) -> Preview | None:
    """The first rows and columns; None if the text is no table."""
    text = data.decode("utf-8-sig", "replace")
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(separators, key=first.count))
    rows: list[list[str]] = []
    try:
        for row in reader:
            if len(rows) > MOST_ROWS:
                break
            is_cut = is_cut or len(row) > MOST_COLUMNS
            rows.append([_cell(cell) for cell in row[:MOST_COLUMNS]])
    except csv.Error:
        return None
    if not rows:
        return None
    shown = rows[1 : MOST_ROWS + 1]
    return Preview("table", header=rows[0], rows=shown, is_cut=is_cut or len(rows) > MOST_ROWS)


def _cell(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


def _indented(data: bytes) -> str | None:
    """JSON with an entry per line; None if it is not JSON, or gets too long."""
    parts: list[str] = []
    length = 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(data)):
            parts.append(part)
            length += len(part)
            if length > LONGEST_JSON:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(parts)
