"""The line of a log at which a step was printed, or at which a moment had come."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.agent.telemetry.printed_lines import LineParser
from orchestrator.store.logs.lines import HasLeft, LogLine, count_lines, never, read_index, read_lines
from orchestrator.store.logs.text import display_text

SLACK_S = 5.0  # between the write of a line and the time in the index
FEW_LINES = 1_000  # are read one by one; more are halved first
WINDOW = 100  # lines, within which a script that prints its steps prints one


@dataclass(frozen=True, slots=True)
class LogPlaceFound:
    """A line by number, from 0; ``exact`` if the line itself names the step."""

    line: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Moment:
    """When the step was reached, and the time that the log covers; seconds since 1970."""

    at_s: float
    started_s: float
    ended_s: float


def find_line(
    log: Path, index: Path, step: int | None, moment: Moment | None, has_left: HasLeft = never
) -> LogPlaceFound | None:
    """The line that names the step; else the line of its moment, from the times at which lines were seen.

    Raises:
        ReaderLeft: ``has_left`` became true.
    """
    total = count_lines(log, index, has_left)
    if not total:
        return None
    # The clock of a metric may be the run's own: what is not near its moment may be anywhere.
    for first, last in dict.fromkeys([_between(index, total, moment), (0, total)]):
        if step is None:
            break
        start, end = _halve(log, index, first, last, step, has_left)
        if (line := _line_of(read_lines(log, index, start, end - start, has_left), step)) is not None:
            return LogPlaceFound(line, exact=True)
    return None if moment is None else LogPlaceFound(_by_time(index, total, moment), exact=False)


def _between(index: Path, total: int, moment: Moment | None) -> tuple[int, int]:
    """The lines that may have been written at the moment."""
    entries = read_index(index)
    if moment is None or not len(entries):
        return 0, total
    times = entries["time_s"]
    before = int(np.searchsorted(times, moment.at_s - SLACK_S)) - 1
    after = int(np.searchsorted(times, moment.at_s + SLACK_S, side="right"))
    return (
        int(entries["line"][before]) if before >= 0 else 0,
        int(entries["line"][after]) if after < len(entries) else total,
    )


def _halve(log: Path, index: Path, first: int, last: int, step: int, has_left: HasLeft) -> tuple[int, int]:
    """Narrow many lines down to few, as steps grow along a log."""
    while last - first > FEW_LINES:
        middle = (first + last) // 2
        seen = next(_steps(read_lines(log, index, middle, WINDOW, has_left)), None)
        if seen is None:
            break
        first, last = (first, middle + WINDOW) if seen[1] > step else (middle, last)
        if last - first <= 2 * WINDOW:
            break
    return first, min(last, first + FEW_LINES)


def _line_of(lines: list[LogLine], step: int) -> int | None:
    """The line that names the step, or the last before it where others around it are named."""
    named = list(_steps(lines))
    if not named or not named[0][1] <= step <= max(at for _, at in named):
        return None
    exact = [line for line, at in named if at == step]
    return exact[0] if exact else max(line for line, at in named if at < step)


def _steps(lines: list[LogLine]) -> Iterator[tuple[int, int]]:
    """Line and step of each line that names one."""
    parser = LineParser()
    for line in lines:
        values = parser.feed(display_text(line.data))
        if values is not None and values.step is not None:
            yield line.number, values.step


def _by_time(index: Path, total: int, moment: Moment) -> int:
    """The line of a moment, between lines whose times are known."""
    entries = read_index(index)
    times = [moment.started_s, *entries["time_s"], max(moment.ended_s, moment.started_s)]
    lines = [0, *entries["line"], total - 1]
    return int(np.interp(moment.at_s, np.maximum.accumulate(times), lines))
