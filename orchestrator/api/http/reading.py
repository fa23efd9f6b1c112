"""Read JSON and times strictly: input that two programs could read differently is refused."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, TypeAlias, cast

from django.http import HttpRequest
from ninja.parser import Parser
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.spec.plain_text import may_be_unwritable, refuse_unwritable, writable

JsonObject: TypeAlias = dict[str, Any]

MAX_DEPTH = 32
MAX_KEYS = 20_000
MAX_DIGITS = 300
# Strings are skipped whole, so that brackets and colons in a script's text do not count.
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*+"|([\[{])|([\]}])|(:)', re.DOTALL)


def read_json(data: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        Malformed: not UTF-8 or not JSON; or NaN, Infinity, a number beyond a double, a key twice in one
            object, nesting deeper than ``MAX_DEPTH``, more than ``MAX_KEYS`` keys, or a text that cannot be
            written (``fields`` has its place).
    """
    _check_shape(data)
    value = _load(data)
    if may_be_unwritable(data):
        refuse_unwritable(value)
    return value


def _load(data: bytes) -> Any:
    try:
        return json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except UnicodeDecodeError as error:
        raise Malformed(
            Sentence("The body is not UTF-8: byte {start} cannot be read.", start=error.start)
        ) from error
    except json.JSONDecodeError as error:
        raise Malformed(
            Sentence(
                "The body is not JSON: {msg} at line {lineno}, column {colno}.",
                msg=error.msg,
                lineno=error.lineno,
                colno=error.colno,
            )
        ) from error


def read_object(data: bytes) -> JsonObject:
    """Like ``read_json``, for a body that must be an object; an empty body is an empty object."""
    value = read_json(data) if data.strip() else {}
    if not isinstance(value, dict):
        raise Malformed("The body must be a JSON object: {...}.")
    return value


class StrictParser(Parser):
    """The parser that ninja uses for request bodies."""

    def parse_body(self, request: HttpRequest) -> JsonObject:
        return cast(JsonObject, read_json(request.body))


def _check_shape(data: bytes) -> None:
    """Limit depth and keys before parsing: a small body must not become a large object."""
    depth = keys = 0
    for hit in _STRUCTURE.finditer(data):
        if hit[1]:
            depth += 1
        elif hit[2]:
            depth -= 1
        elif hit[3]:
            keys += 1
        if depth > MAX_DEPTH:
            raise Malformed(
                Sentence("The JSON is nested deeper than {max_depth} levels.", max_depth=MAX_DEPTH)
            )
        if keys > MAX_KEYS:
            raise Malformed(Sentence("The JSON has more than {max_keys:,} keys.", max_keys=MAX_KEYS))


def _unique(pairs: Iterable[tuple[str, Any]]) -> JsonObject:
    members: JsonObject = {}
    for key, value in pairs:
        if key in members:
            raise Malformed(
                Sentence("The JSON has {key!r} twice in one object.", key=key[:80]),
                fields={writable(key[:80]): ["is there twice"]},
            )
        members[key] = value
    return members


def _refuse_constant(text: str) -> float:
    raise Malformed(
        Sentence("The JSON has {text}, which JSON does not allow. Give a finite number or null.", text=text)
    )


def _finite(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise Malformed(Sentence("The number {text} is too large. Give a finite number.", text=text[:40]))
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise Malformed(
            Sentence(
                "A number has {text:,} digits; at most {max_digits} are accepted.",
                text=len(text),
                max_digits=MAX_DIGITS,
            )
        )
    return int(text)


class Body(BaseModel):
    """A request's body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


LATEST_S = 1e11  # the year 5138


def read_seconds(value: Any) -> Any:
    """Convert a time such as 2026-11-21T07:00:00Z to seconds since 1970; numbers stay as they are.

    Raises:
        ValueError: neither a number nor a time with a zone; pydantic makes it the field's message.
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        # An unencoded plus sign in an address arrives as a space.
        moment = datetime.fromisoformat(value.replace(" ", "+") if "T" in value else value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("give seconds since 1970, or a time with its zone such as 2026-11-21T07:00:00Z")
    return moment.timestamp()


Moment = Annotated[
    float,
    Field(ge=0, le=LATEST_S, allow_inf_nan=False),
    BeforeValidator(read_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]}),
]
