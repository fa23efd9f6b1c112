"""Lines of a log that hold a text or match an expression, counted over the whole log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import re2

from orchestrator.exceptions import Malformed
from orchestrator.store.log_blocks import LineBlock, shown_part
from orchestrator.store.log_lines import MOST_BYTES, HasLeft, never, read_blocks

LONGEST_QUERY = 200
MOST_BY_EXPRESSION = 20_000  # a line that matches costs microseconds; nobody pages through more
MOST_STATES_BYTES = 8 << 20  # what one expression may use of memory

Find = Callable[[bytes], Iterator[int]]  # the offsets in a block at which something was found, rising


@dataclass(frozen=True, slots=True)
class LineHit:
    number: int  # of the line, from 0
    offset: int
    data: bytes  # the line without its newline, at most 16 KiB of it


@dataclass(slots=True)
class Found:
    """``hits`` is a page of them; ``total`` counts the lines of the log that match, all unless there are ``more``."""

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
) -> Found:
    """Search the whole log; reads it once, a MiB at a time.

    Args:
        first: hits on earlier lines are counted, not returned.
        limit: most hits to return; of long lines fewer are, about 4 MiB.

    Raises:
        Malformed: the query is empty or too long, or the expression cannot be read.
        ReaderLeft: ``has_left`` said so on the way.
    """
    if not query or len(query) > LONGEST_QUERY:
        sentence = f"give 1 to {LONGEST_QUERY} characters to search for"
        raise Malformed(sentence, fields={"q": [sentence]})
    find = _matcher(query, case=case) if regex else None
    wanted = query.encode() if case else query.lower().encode()
    found = Found()
    for block in read_blocks(log, index, 0, has_left):
        hits = _by_expression(block.data, find) if find else _by_text(block.data, wanted, case=case)
        _take(block, hits, found, first, limit)
        if find and found.total >= MOST_BY_EXPRESSION and len(found.hits) >= limit:
            found.more = True
            break
    return found


def _by_text(data: bytes, wanted: bytes, *, case: bool) -> list[int]:
    """Which lines of a block, counted from its first, hold the text."""
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


def _take(block: LineBlock, lines: list[int], found: Found, first: int, limit: int) -> None:
    found.total += len(lines)
    room = limit - len(found.hits)
    wanted = [at for at in lines if block.number + at >= first][: max(0, room)]
    if not wanted or found.size_bytes >= MOST_BYTES:
        return
    parts = block.data.split(b"\n")
    offset, passed = block.offset, 0
    for at in wanted:
        offset += sum(len(part) + 1 for part in parts[passed:at])
        passed = at
        start, shown = shown_part(parts[at])
        found.hits.append(LineHit(block.number + at, offset + start, shown))
        found.size_bytes += len(shown)


def _matcher(query: str, *, case: bool) -> Find:
    options = re2.Options()
    options.case_sensitive = case
    options.log_errors = False
    options.max_mem = MOST_STATES_BYTES
    options.encoding = re2.Options.Encoding.LATIN1 if query.isascii() else re2.Options.Encoding.UTF8
    try:
        expression: Any = re2.compile(f"(?m:{query})".encode(), options)
    except re2.error as error:
        said = (
            error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else ""
        )
        sentence = f"this expression cannot be read: {said.rpartition(': ')[0] or 'it is not complete'}"
        raise Malformed(sentence, fields={"q": [sentence]}) from None

    def find(data: bytes) -> Iterator[int]:
        at = 0
        while (hit := expression.search(data, at)) is not None:
            yield hit.start()
            at = data.find(b"\n", hit.start()) + 1  # one hit a line is enough
            if at in (0, len(data)):  # behind the last newline no line begins
                return

    return find
