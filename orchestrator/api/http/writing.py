"""Tables as CSV that a spreadsheet reads as text and numbers, never as formulas (T21)."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from django.http import HttpRequest
from ninja.renderers import BaseRenderer
from pydantic import BaseModel, ConfigDict

from orchestrator.spec.plain_text import writable
from orchestrator.store.series import Block

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(header: Sequence[str] | None, rows: Iterable[Sequence[object]]) -> str:
    """RFC 4180; what would begin a formula gets an apostrophe before it, numbers stay numbers.

    None for ``header`` writes more rows of a table that was begun before.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_MINIMAL)
    if header is not None:
        writer.writerow(header)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return value
    text = str(value).replace("\0", "")
    # Spreadsheets pass over blanks before they look for a formula.
    return f"'{text}" if text.lstrip(" ").startswith(_BEGINS_A_FORMULA) else text


HEADER = ("series", "attempt", "step", "time", "value")


def write_points(blocks: Iterable[Block]) -> Iterator[bytes]:
    """The header, then a piece for each block; times are RFC 3339 in UTC, values ``nan`` and ``inf`` as such."""
    yield write_csv(HEADER, ()).encode()
    for block in blocks:
        yield _rows(block)


def _rows(block: Block) -> bytes:
    rows = zip(block.step.tolist(), block.ms.tolist(), block.value.tolist(), strict=True)
    lines = [(block.name, block.attempt, step, _moment(ms), value) for step, ms, value in rows]
    return write_csv(None, lines).encode()


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a job may report any time
        return ""


class ByName(BaseModel):
    """An answer whose JSON has names that Python cannot write, such as ``from``: code uses the field's own."""

    model_config = ConfigDict(populate_by_name=True)


class JsonRenderer(BaseRenderer):
    """orjson writes NaN and infinities as null, so an answer is JSON whatever a job reported (B47).

    A file's name that is no UTF-8, or a row from before such texts were refused, is shown with a mark in it.
    """

    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:
        try:
            return orjson.dumps(data, option=orjson.OPT_UTC_Z)
        except orjson.JSONEncodeError:
            return orjson.dumps(_writable(data), option=orjson.OPT_UTC_Z)


def _writable(value: Any) -> Any:
    match value:
        case str():
            return writable(value)
        case dict():
            return {_writable(key): _writable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_writable(inner) for inner in value]
    return value
