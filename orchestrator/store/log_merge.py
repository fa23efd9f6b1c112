"""The logs of all ranks of an attempt as one, in the order in which the agent saw their lines.

Beside the logs stands ``merged.idx``.  About once a second the agent appends what each rank has printed since
as one block, so lines of one rank keep their order, lines of two ranks are exact to that second, and the
number of a merged line never changes.  What was written while no agent ran stands together, rank by rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.store import log_lines, log_search
from orchestrator.store.durable import append_behind
from orchestrator.store.log_lines import LAST, MOST_BYTES, MOST_LINES, HasLeft, never

EVERY_S = 1.0
# Lines of ``rank`` from ``first`` on, up to the merged line ``end``; 32 bytes.
BLOCK = np.dtype([("end", "<u8"), ("first", "<u8"), ("rank", "<u8"), ("time_s", "<f8")])
LogOf = Callable[[int], tuple[Path, Path]]  # a rank's log and its index


@dataclass(frozen=True, slots=True)
class MergedLine:
    number: int  # among the lines of all ranks, from 0
    rank: int
    seen_s: float  # seconds since 1970
    offset: int  # in the log of its rank
    data: bytes


class MergedIndex:
    """Extends the index; only the agent does.  Losing it costs the order between ranks, no line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        blocks = read_blocks(path)
        self._kept = len(blocks)
        self._end = int(blocks["end"][-1]) if len(blocks) else 0
        self._seen: dict[int, int] = {}
        counts = np.diff(blocks["end"], prepend=np.uint64(0))
        for rank in np.unique(blocks["rank"]).tolist():
            last = int(np.flatnonzero(blocks["rank"] == rank)[-1])
            self._seen[rank] = int(blocks["first"][last]) + int(counts[last])
        self._noted_s = 0.0

    def note(self, lines: Mapping[int, int], now_s: float, *, at_end: bool = False) -> None:
        """Take down how many lines each rank has, a second after the last time or at the end."""
        if 0 <= now_s - self._noted_s < EVERY_S and not at_end:
            return
        found = []
        for rank, count in sorted(lines.items()):
            first = self._seen.get(rank, 0)
            if count > first:
                self._end += count - first
                self._seen[rank] = count
                found.append((self._end, first, rank, now_s))
        if found:
            self._noted_s = now_s
            append_behind(self._path, self._kept * BLOCK.itemsize, np.array(found, BLOCK).tobytes())
            self._kept += len(found)


def read_blocks(path: Path) -> NDArray[np.void]:
    """The whole blocks, shape ``(blocks,)``; read from the disk only where they are looked at."""
    try:
        count = path.stat().st_size // BLOCK.itemsize
        return np.memmap(path, BLOCK, "r", shape=(count,)) if count else np.empty(0, BLOCK)
    except FileNotFoundError:
        return np.empty(0, BLOCK)


def count_merged(path: Path) -> int:
    blocks = read_blocks(path)
    return int(blocks["end"][-1]) if len(blocks) else 0


def read_merged(
    path: Path, log_of: LogOf, first: int, count: int, has_left: HasLeft = never
) -> list[MergedLine]:
    """Lines by number, a negative one from the end, at most 5,000 or about 4 MiB; those that the cap dropped are
    left out.

    Raises:
        ReaderLeft: ``has_left`` said so on the way.
    """
    blocks = read_blocks(path)
    total = int(blocks["end"][-1]) if len(blocks) else 0
    first = max(0, total + first) if first < 0 else first
    until = min(total, first + min(count, MOST_LINES))
    parts: dict[int, list[tuple[int, int, int, float]]] = {}
    at = int(np.searchsorted(blocks["end"], first, side="right"))
    begin = int(blocks["end"][at - 1]) if at else 0
    while begin < until:
        end, line, rank, time_s = blocks[at].item()
        skipped = max(0, first - begin)
        parts.setdefault(rank, []).append((line + skipped, begin + skipped, min(end, until), time_s))
        begin, at = end, at + 1
    found, whole_until = [], until
    for (
        rank,
        pieces,
    ) in parts.items():  # a rank's pieces follow each other in its log, so each log is read once
        lines, reached = _read_rank(rank, pieces, *log_of(rank), has_left)
        found += lines
        whole_until = min(whole_until, reached)
    return _first_of(found, whole_until)


def _read_rank(
    rank: int, pieces: list[tuple[int, int, int, float]], log: Path, index: Path, has_left: HasLeft
) -> tuple[list[MergedLine], int]:
    """The lines, and the merged number up to which they are whole: long ones are not all read at once.

    Args:
        pieces: first line in the rank's log, first and last merged number, time.
    """
    wanted = sum(end - number for _, number, end, _ in pieces)
    read = log_lines.read_lines(log, index, pieces[0][0], wanted, has_left)
    lines = {line.number: line for line in read}
    is_cut = sum(len(line.data) for line in read) >= MOST_BYTES
    found = [
        MergedLine(number + step, rank, time_s, line.offset, line.data)
        for first, number, end, time_s in pieces
        for step in range(end - number)
        if (line := lines.get(first + step)) is not None
    ]
    return found, found[-1].number + 1 if is_cut and found else LAST


def _first_of(lines: list[MergedLine], until: int) -> list[MergedLine]:
    """In order, those before number ``until``, and no more than about 4 MiB of them."""
    kept: list[MergedLine] = []
    size_bytes = 0
    for line in sorted(lines, key=lambda line: line.number):
        if line.number >= until or size_bytes >= MOST_BYTES:
            break
        kept.append(line)
        size_bytes += len(line.data)
    return kept


def search_merged(
    path: Path,
    log_of: LogOf,
    query: str,
    *,
    regex: bool,
    case: bool,
    first: int,
    limit: int,
    has_left: HasLeft = never,
) -> tuple[log_search.Found, list[MergedLine]]:
    """As ``log_search.search`` for all ranks: the counts, and the hits with their merged numbers.

    Raises:
        Malformed: the query is empty or too long, or the expression cannot be read.
        ReaderLeft: ``has_left`` said so on the way.
    """
    blocks = read_blocks(path)
    starts = np.concatenate([[0], blocks["end"][:-1]]).astype(np.int64)[: len(blocks)]
    found, hits, whole_until = log_search.Found(), [], LAST
    for rank in np.unique(blocks["rank"]).tolist() or [0]:
        own = np.flatnonzero(blocks["rank"] == rank)
        lines, numbers = blocks["first"][own].astype(np.int64), starts[own]
        counts = blocks["end"][own].astype(np.int64) - numbers
        at = int(np.searchsorted(numbers, first, side="right")) - 1
        begin = int(lines[at] + min(first - numbers[at], counts[at])) if at >= 0 else 0
        log, index = log_of(rank)
        part = log_search.search(
            log, index, query, regex=regex, case=case, first=begin, limit=limit, has_left=has_left
        )
        found.total += part.total
        found.more = found.more or part.more
        for hit in part.hits:
            at = int(np.searchsorted(lines, hit.number, side="right")) - 1
            step = hit.number - int(lines[at]) if at >= 0 else -1
            if 0 <= step < counts[at]:  # what the agent has not taken down yet has no number
                seen_s = float(blocks["time_s"][own[at]])
                hits.append(MergedLine(int(numbers[at]) + step, rank, seen_s, hit.offset, hit.data))
        if part.size_bytes >= MOST_BYTES and hits:
            whole_until = min(whole_until, hits[-1].number + 1)
    return found, _first_of(hits, whole_until)[:limit]
