"""Refuses text that no column, program or answer can hold, in every body, query and form.

PostgreSQL and programs take no NUL character. Half of a UTF-16 pair (U+D800 to U+DFFF) has no UTF-8 form: it
cannot be written to a file or a database, or sent back in an answer.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from orchestrator.exceptions import Malformed, Sentence

_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_IN_JSON = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")  # a JSON text can hold these only as escapes


def refuse_unwritable(value: Any) -> None:
    """Refuse a value of JSON or a form that contains such a text, as a key or at any depth.

    Raises:
        Malformed: ``fields`` names the field.
    """
    for place, problem in _problems(value, ()):
        field, inner = (place[0], place[1:]) if place else ("body", ())
        message = Sentence("{inner}: {problem}", inner=".".join(inner), problem=problem) if inner else problem
        raise Malformed(
            Sentence("{place}: {problem}.", place=".".join(place) or "The text", problem=problem),
            fields={field: [message]},
        )


def may_be_unwritable(data: bytes) -> bool:
    """Whether a JSON text has an escape that could make such a text; without one its value need not be searched."""
    return _IN_JSON.search(data) is not None


def why_unwritable(text: str) -> str | None:
    """Describe the first character that cannot be written, with its place; None if there is no such character."""
    found = _UNWRITABLE.search(text)
    if found is None:
        return None
    if found[0] == "\0":
        return Sentence(
            "has a NUL character at place {place}, which no text can hold; leave it out",
            place=found.start() + 1,
        )
    return Sentence(
        "has half of a character (U+{code:04X}) at place {place}; write it whole, as UTF-8",
        code=ord(found[0]),
        place=found.start() + 1,
    )


def writable(text: str) -> str:
    """A text with a mark in the place of what cannot be written."""
    return text.encode(errors="replace").decode()


def clean_text(text: str) -> str:
    """Normalise to NFC and refuse characters that would break or disguise a line."""
    text = unicodedata.normalize("NFC", text).strip()
    for character in text:
        if unicodedata.category(character) in {"Cc", "Cf", "Cs"} and character not in "\u200d\ufe0f":
            raise ValueError(
                Sentence(
                    "has the character U+{code:04X}, which cannot be shown; leave it out", code=ord(character)
                )
            )
    return text


def _problems(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    match value:
        case str():
            if problem := why_unwritable(value):
                yield place, problem
        case dict():
            for key, inner in value.items():
                here = (*place, ascii(key)[1:-1][:80])
                if problem := why_unwritable(str(key)):
                    yield here, f"the name {problem}"
                yield from _problems(inner, here)
        case list() | tuple():
            for number, inner in enumerate(value):
                yield from _problems(inner, (*place, str(number)))
