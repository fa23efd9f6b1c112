"""Reads printed lines as a run prints them, and says what they tell."""

from orchestrator.agent.telemetry.layout_reader import LineValues
from orchestrator.agent.telemetry.printed_lines import LineParser


def values_of(parser: LineParser, line: str) -> LineValues:
    """What a line says; it must say something."""
    found = parser.feed(line)
    assert found is not None, line
    return found


def last_of(lines: str) -> LineValues:
    """What the last of several lines says."""
    parser = LineParser()
    *_, last = (parser.feed(line) for line in lines.split("\n"))
    assert last is not None
    return last


def steps_of(*lines: str) -> list[int | None]:
    """The steps of those lines that tell anything."""
    parser = LineParser()
    return [found.step for line in lines if (found := parser.feed(line)) is not None]
