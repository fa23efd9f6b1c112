"""Stored points as CSV, a piece at a time: ten million points are never in memory at once."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from orchestrator.api.csv_text import write_csv
from orchestrator.store.series import Block

HEADER = ("series", "attempt", "step", "time", "value")


def write_points(blocks: Iterable[Block]) -> Iterator[bytes]:
    """The header, then a piece for each block; times are RFC 3339 in UTC, values ``nan`` and ``inf`` as such."""
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
    except (OverflowError, ValueError, OSError):  # a job may report any time
        return ""
