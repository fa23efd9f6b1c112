"""Searches a whole log for lines that contain a text or match an expression."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import re2

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.store.logs.blocks import LineBlock, visible_part
from orchestrator.store.logs.lines import MOST_BYTES, HasLeft, never, read_blocks

LONGEST_QUERY = 200
MOST_BY_EXPRESSION = 20_000  # each match costs microseconds, and nobody pages through more
MOST_STATES_BYTES = 8 << 20  # memory limit of one expression

Find = Callable[[bytes], Iterator[int]]  # ascending offsets of the matches in a block


@dataclass(frozen=True, slots=True)
class LineHit:
    number: int  # of the line, from 0
    offset: int
    data: bytes  # the line without its newline, at most 16 KiB of it


@dataclass(slots=True)
class SearchResult:
    """``hits`` is one page; ``total`` counts all matching lines of the log unless ``more`` is set."""

    total: int = 0
    more: bool = False
    hits: list[LineHit] = field(default_factory=list)
    size_bytes: int = 0  # of the hits


def search(
    log: Path,
    index: Path,
    query: str,
    *,
    regex: bool,
    case: bool,
    first: int,
    limit: int,
    has_left: HasLeft = never,
) -> SearchResult:
    """Search the whole log; reads it once, a MiB at a time.

    Args:
        first: hits on earlier lines are counted, not returned.
        limit: most hits to return; fewer where lines are long (about 4 MiB).

    Raises:
        Malformed: the query is empty or too long, or the expression cannot be read.
        ReaderLeft: ``has_left`` became true.
    """
    if not query or len(query) > LONGEST_QUERY:
        sentence = Sentence("give 1 to {longest_query} characters to search for", longest_query=LONGEST_QUERY)
        raise Malformed(sentence, fields={"q": [sentence]})
    find = _matcher(query, case=case) if regex else None
    wanted = query.encode() if case else query.lower().encode()
    result = SearchResult()
    for block in read_blocks(log, index, 0, has_left):
        hits = _by_expression(block.data, find) if find else _by_text(block.data, wanted, case=case)
        _take(block, hits, result, first, limit)
        if find and result.total >= MOST_BY_EXPRESSION and len(result.hits) >= limit:
            result.more = True
            break
    return result


def _by_text(data: bytes, wanted: bytes, *, case: bool) -> list[int]:
    """Which lines of a block (counted from its first) contain the text."""
    if not case:
        data = data.lower()
    if wanted not in data:
        return []
    return [at for at, line in enumerate(data.split(b"\n")) if wanted in line]


def _by_expression(data: bytes, find: Find) -> list[int]:
    lines: list[int] = []
    seen = line = 0
    for at in find(data):
        line += data.count(b"\n", seen, at)
        seen = at
        if not lines or lines[-1] != line:
            lines.append(line)
    return lines


def _take(block: LineBlock, lines: list[int], result: SearchResult, first: int, limit: int) -> None:
    result.total += len(lines)
    room = limit - len(result.hits)
    wanted = [at for at in lines if block.number + at >= first][: max(0, room)]
    if not wanted or result.size_bytes >= MOST_BYTES:
        return
    parts = block.data.split(b"\n")
    offset, passed = block.offset, 0
    for at in wanted:
        offset += sum(len(part) + 1 for part in parts[passed:at])
        passed = at
        start, visible = visible_part(parts[at])
        result.hits.append(LineHit(block.number + at, offset + start, visible))
        result.size_bytes += len(visible)


def _matcher(query: str, *, case: bool) -> Find:
    options = re2.Options()
    options.case_sensitive = case
    options.log_errors = False
    options.max_mem = MOST_STATES_BYTES
    options.encoding = re2.Options.Encoding.LATIN1 if query.isascii() else re2.Options.Encoding.UTF8
    try:
        expression: Any = re2.compile(f"(?m:{query})".encode(), options)
    except re2.error as error:
        raw = error.args[0] if error.args and isinstance(error.args[0], bytes) else b""
        what = raw.rpartition(b": ")[0].decode(errors="replace")  # RE2 adds the expression
        sentence = Sentence("this expression cannot be read: {value}", value=what or "it is not complete")
        raise Malformed(sentence, fields={"q": [sentence]}) from None

    def find(data: bytes) -> Iterator[int]:
        at = 0
        while (hit := expression.search(data, at)) is not None:
            yield hit.start()
            at = data.find(b"\n", hit.start()) + 1  # one hit a line is enough
            if at in (0, len(data)):  # no line starts after the last newline
                return

    return find
