"""Merges the logs of all ranks of an attempt, in the order in which the agent saw their lines.

The index ``merged.idx`` lies beside the logs.  About once a second the agent appends one block for the new lines of
each rank: lines of one rank keep their order, lines of different ranks are ordered to the second, and the number of a
merged line never changes.  Lines written while no agent ran are grouped by rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.files.durable import append_behind
from orchestrator.store.logs.lines import LAST, MOST_BYTES, MOST_LINES, HasLeft, never, read_lines
from orchestrator.store.logs.search import SearchResult, search

EVERY_S = 1.0
# Lines of ``rank`` starting at ``first``, up to the merged line ``end``; 32 bytes.
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
    """Extends the index.  Only the agent does; losing it loses the order between ranks, but no line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        blocks = read_blocks(path)
        self._block_count = len(blocks)
        self._end = int(blocks["end"][-1]) if len(blocks) else 0
        self._seen: dict[int, int] = {}
        counts = np.diff(blocks["end"], prepend=np.uint64(0))
        for rank in np.unique(blocks["rank"]).tolist():
            last = int(np.flatnonzero(blocks["rank"] == rank)[-1])
            self._seen[rank] = int(blocks["first"][last]) + int(counts[last])
        self._recorded_s = 0.0

    def note(self, lines: Mapping[int, int], now_s: float, *, at_end: bool = False) -> None:
        """Record how many lines each rank has, at most once a second and at the end."""
        if 0 <= now_s - self._recorded_s < EVERY_S and not at_end:
            return
        new_blocks = []
        for rank, count in sorted(lines.items()):
            first = self._seen.get(rank, 0)
            if count > first:
                self._end += count - first
                self._seen[rank] = count
                new_blocks.append((self._end, first, rank, now_s))
        if new_blocks:
            self._recorded_s = now_s
            append_behind(
                self._path, self._block_count * BLOCK.itemsize, np.array(new_blocks, BLOCK).tobytes()
            )
            self._block_count += len(new_blocks)


def read_blocks(path: Path) -> NDArray[np.void]:
    """The complete blocks, shape ``(blocks,)``, memory-mapped."""
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
    """Lines by number (a negative number counts from the end), at most 5,000 or about 4 MiB.

    Leaves out lines that the cap dropped.

    Raises:
        ReaderLeft: ``has_left`` became true.
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
    merged, whole_until = [], until
    for rank, pieces in parts.items():  # pieces of a rank are adjacent in its log, so each log is read once
        lines, reached = _read_rank(rank, pieces, *log_of(rank), has_left)
        merged += lines
        whole_until = min(whole_until, reached)
    return _first_of(merged, whole_until)


def _read_rank(
    rank: int, pieces: list[tuple[int, int, int, float]], log: Path, index: Path, has_left: HasLeft
) -> tuple[list[MergedLine], int]:
    """The lines, and the merged number up to which they are complete: long lines are not all read at once.

    Args:
        pieces: first line in the rank's log, first and last merged number, time.
    """
    count = sum(end - number for _, number, end, _ in pieces)
    read = read_lines(log, index, pieces[0][0], count, has_left)
    lines = {line.number: line for line in read}
    is_cut = sum(len(line.data) for line in read) >= MOST_BYTES
    merged = [
        MergedLine(number + step, rank, time_s, line.offset, line.data)
        for first, number, end, time_s in pieces
        for step in range(end - number)
        if (line := lines.get(first + step)) is not None
    ]
    return merged, merged[-1].number + 1 if is_cut and merged else LAST


def _first_of(lines: list[MergedLine], until: int) -> list[MergedLine]:
    """The lines before number ``until`` in order, at most about 4 MiB."""
    page: list[MergedLine] = []
    size_bytes = 0
    for line in sorted(lines, key=lambda line: line.number):
        if line.number >= until or size_bytes >= MOST_BYTES:
            break
        page.append(line)
        size_bytes += len(line.data)
    return page


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
) -> tuple[SearchResult, list[MergedLine]]:
    """Search the logs of all ranks: the counts, and the hits with their merged numbers.

    Raises:
        Malformed: the query is empty or too long, or the expression cannot be read.
        ReaderLeft: ``has_left`` became true.
    """
    blocks = read_blocks(path)
    starts = np.concatenate([[0], blocks["end"][:-1]]).astype(np.int64)[: len(blocks)]
    result, hits, whole_until = SearchResult(), [], LAST
    for rank in np.unique(blocks["rank"]).tolist() or [0]:
        own = np.flatnonzero(blocks["rank"] == rank)
        lines, numbers = blocks["first"][own].astype(np.int64), starts[own]
        counts = blocks["end"][own].astype(np.int64) - numbers
        at = int(np.searchsorted(numbers, first, side="right")) - 1
        begin = int(lines[at] + min(first - numbers[at], counts[at])) if at >= 0 else 0
        log, index = log_of(rank)
        part = search(log, index, query, regex=regex, case=case, first=begin, limit=limit, has_left=has_left)
        result.total += part.total
        result.more = result.more or part.more
        for hit in part.hits:
            at = int(np.searchsorted(lines, hit.number, side="right")) - 1
            step = hit.number - int(lines[at]) if at >= 0 else -1
            if 0 <= step < counts[at]:  # lines that the agent has not recorded yet have no number
                seen_s = float(blocks["time_s"][own[at]])
                hits.append(MergedLine(int(numbers[at]) + step, rank, seen_s, hit.offset, hit.data))
        if part.size_bytes >= MOST_BYTES and hits:
            whole_until = min(whole_until, hits[-1].number + 1)
    return result, _first_of(hits, whole_until)[:limit]
