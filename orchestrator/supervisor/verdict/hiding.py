"""Takes the values of a job's secrets out of texts that leave the attempt's folder with its exit record."""

import re
from collections.abc import Callable, Iterable, Mapping

from orchestrator.supervisor.verdict.rank_reports import RankError

_HIDDEN = "***"
# A quote as it is, and as Python, Jinja and Go, PHP and XML write it.
_DOUBLE_QUOTES = ('"', "&quot;", "&#34;", "&#x22;")
_SINGLE_QUOTES = ("'", "&#x27;", "&#39;", "&#039;", "&apos;")
_ESCAPED_BYTE = re.compile("%[0-9A-F]{2}")
_SHORTEST = 6  # characters; "1" or "true" as a secret would spoil every text, and tells nothing


class Hider:
    """Replaces values of secrets in texts, whole, by lines, and as Python, JSON, pages and addresses write them."""

    def __init__(self, values: Iterable[str]) -> None:
        parts = {
            part for value in values for part in (value, value.strip(), *map(str.strip, value.splitlines()))
        }
        # The value decides, not its forms: \u00e9 and &quot; are six characters for one.
        long_enough = (part for part in parts if len(part.strip()) >= _SHORTEST)
        self._longest_first = sorted(
            {form for part in long_enough for form in _forms_of(part)}, key=len, reverse=True
        )

    def __call__(self, text: str) -> str:
        # A pattern of them all would try each of thousands of lines at each character, and a search for each of them
        # takes seconds; few begin anywhere in the text.
        starts = {text[at : at + _SHORTEST] for at in range(len(text) - _SHORTEST + 1)}
        for form in self._longest_first:
            if form[:_SHORTEST] in starts:
                text = text.replace(form, _HIDDEN)
        return text

    def in_cut(self, text: str) -> str:
        """The same for a text whose beginning was cut off at any byte: it may begin with the end of a value."""
        text = text.lstrip("\ufffd")  # the rest of a character
        end = max((_rest_of(form, text) for form in self._longest_first), default=0)
        if not end:
            return self(text)
        for form in self._longest_first:  # a value may begin within what looks like the rest of another
            at = text.find(form, 0, end + len(form) - 1)
            end = max(end, at + len(form)) if at >= 0 else end
        return _HIDDEN + self(text[end:])


def hider_of(values: Iterable[str]) -> Hider:
    """A function that replaces these values in a text."""
    return Hider(values)


def _rest_of(form: str, tail: str) -> int:
    """Characters of the longest end of a form with which the tail of a log begins."""
    head = tail[:_SHORTEST]
    at = form.find(head, 1) if len(head) == _SHORTEST else -1
    while at > 0:
        if tail.startswith(form[at:]):
            return len(form) - at
        at = form.find(head, at + 1)
    return next((size for size in range(len(head), 0, -1) if form.endswith(head[:size])), 0)


def load() -> None:
    """Import what ``hider_of`` needs; called once the ranks start, which must not wait for it.

    At the end of a long run, an upgrade may have removed the library of the Python that runs this.
    """
    tuple(_forms_of(""))


def _forms_of(value: str) -> Iterable[str]:
    import html
    import json
    from urllib.parse import quote, quote_plus  # late imports: see ``load``

    yield value
    if value.isascii() and value.isalnum():
        return  # the same everywhere
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    page = html.escape(value, quote=False)
    for double in _DOUBLE_QUOTES if '"' in value else _DOUBLE_QUOTES[:1]:
        for single in _SINGLE_QUOTES if "'" in value else _SINGLE_QUOTES[:1]:
            yield page.replace('"', double).replace("'", single)
    for safe in ("", "/"):
        for escaped in {
            quote(value, safe=safe, errors="replace"),
            quote_plus(value, safe=safe, errors="replace"),
        }:
            yield escaped
            yield _ESCAPED_BYTE.sub(lambda byte: byte[0].lower(), escaped)


def hide_in_errors(hide: Callable[[str], str], errors: Mapping[int, RankError]) -> dict[int, RankError]:
    """The same exceptions, with what is hidden taken out of their messages and traces."""
    return {
        rank: RankError(error.exception, hide(error.message), error.time_ns, hide(error.trace))
        for rank, error in errors.items()
    }
