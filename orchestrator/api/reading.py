"""Reading JSON strictly: what two programs could read differently is refused (B30, B38)."""

import json
import re
from collections.abc import Iterable
from typing import Any, cast

from django.http import HttpRequest
from ninja.parser import Parser

from orchestrator.exceptions import Malformed
from orchestrator.spec.plain_text import may_be_unwritable, refuse_unwritable, writable

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
        raise Malformed(f"The body is not UTF-8: byte {error.start} cannot be read.") from error
    except json.JSONDecodeError as error:
        raise Malformed(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error


def read_object(data: bytes) -> dict[str, Any]:
    """As ``read_json``, for a body that must be an object; an empty body is an empty object."""
    value = read_json(data) if data.strip() else {}
    if not isinstance(value, dict):
        raise Malformed("The body must be a JSON object: {...}.")
    return value


class StrictParser(Parser):
    """What ninja reads request bodies with."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        return cast(dict[str, Any], read_json(request.body))


def _check_shape(data: bytes) -> None:
    """Bound depth and keys before anything is built: a small body must not become a large object."""
    depth = keys = 0
    for hit in _STRUCTURE.finditer(data):
        if hit[1]:
            depth += 1
        elif hit[2]:
            depth -= 1
        elif hit[3]:
            keys += 1
        if depth > MAX_DEPTH:
            raise Malformed(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
        if keys > MAX_KEYS:
            raise Malformed(f"The JSON has more than {MAX_KEYS:,} keys.")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Malformed(
                f"The JSON has {key[:80]!r} twice in one object.",
                fields={writable(key[:80]): ["is there twice"]},
            )
        found[key] = value
    return found


def _refuse_constant(text: str) -> float:
    raise Malformed(f"The JSON has {text}, which is not a number in JSON; give a finite number or null.")


def _finite(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise Malformed(f"The number {text[:40]} is too large; give a finite number.")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise Malformed(f"A number has {len(text):,} digits; {MAX_DIGITS} are accepted.")
    return int(text)
