"""Takes the values of a job's secrets out of texts that leave the attempt's folder with its exit record."""

from collections.abc import Callable, Iterable, Mapping

from orchestrator.supervisor.verdict.rank_reports import RankError

_HIDDEN = "***"
_SHORTEST = 6  # characters; "1" or "true" as a secret would spoil every text, and tells nothing


def hider_of(values: Iterable[str]) -> Callable[[str], str]:
    """A function that replaces these values in a text, whole, by lines, and as Python, JSON, pages and addresses write them."""
    parts = {part for value in values for part in (value, value.strip(), *map(str.strip, value.splitlines()))}
    # The value decides, not its forms: \u00e9 and &quot; are six characters for one.
    long_enough = (part for part in parts if len(part.strip()) >= _SHORTEST)
    longest_first = sorted({form for part in long_enough for form in _forms_of(part)}, key=len, reverse=True)

    def hide(text: str) -> str:
        # A pattern of them all would try each of thousands of lines at each character, and a search for each of them
        # takes seconds; few begin anywhere in the text.
        starts = {text[at : at + _SHORTEST] for at in range(len(text) - _SHORTEST + 1)}
        for form in longest_first:
            if form[:_SHORTEST] in starts:
                text = text.replace(form, _HIDDEN)
        return text

    return hide


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
    yield html.escape(value)
    for safe in ("", "/"):
        yield quote(value, safe=safe, errors="replace")
        yield quote_plus(value, safe=safe, errors="replace")


def hide_in_errors(hide: Callable[[str], str], errors: Mapping[int, RankError]) -> dict[int, RankError]:
    """The same exceptions, with what is hidden taken out of their messages and traces."""
    return {
        rank: RankError(error.exception, hide(error.message), error.time_ns, hide(error.trace))
        for rank, error in errors.items()
    }
