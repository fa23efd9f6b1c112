"""Write answers: JSON without NaN, and CSV that a spreadsheet never reads as formulas."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from django.http import HttpRequest
from ninja.renderers import BaseRenderer
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.facts.record import Facts
from orchestrator.spec.plain_text import writable
from orchestrator.store.metrics.series import Block

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(header: Sequence[str] | None, rows: Iterable[Sequence[object]]) -> str:
    """Write a table as RFC 4180; text that would start a formula gets an apostrophe, numbers stay numbers.

    Args:
        header: None continues a table.
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
    # Spreadsheets skip leading blanks before they look for a formula.
    return f"'{text}" if text.lstrip(" ").startswith(_BEGINS_A_FORMULA) else text


HEADER = ("series", "attempt", "step", "time", "value")


def write_points(blocks: Iterable[Block]) -> Iterator[bytes]:
    """Write stored points as CSV, one piece per block: ten million points are never in memory at once.

    Times are RFC 3339 in UTC; ``nan`` and ``inf`` are written as such.
    """
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
    except (OverflowError, ValueError, OSError):  # a job may report an impossible time
        return ""


class ByName(BaseModel):
    """An answer whose JSON has keys that are Python keywords, such as ``from``; code uses the field's name."""

    model_config = ConfigDict(populate_by_name=True)


class FactOut(BaseModel):
    """What a sentence was made of: decide by these, never by the sentence."""

    code: str = Field(description="what happened; 'told' where only a sentence is known")
    facts: Facts = Field(description="by name; times in seconds, sizes in bytes, as the names say")


class JsonRenderer(BaseRenderer):
    """Write JSON with times in UTC. orjson writes NaN and infinities as null, so any reported value is valid JSON.

    Text that is not valid Unicode (a file's name, an old row) gets replacement characters.
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
