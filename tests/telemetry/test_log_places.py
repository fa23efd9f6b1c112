"""The line of a log where a step was printed."""

import pytest

from orchestrator.agent.telemetry.log_places import LogPlaceFound, Moment, find_line
from orchestrator.store.logs.lines import LineIndex


@pytest.fixture
def write(tmp_path):
    """Write a log, with an index that saw its parts at the given seconds."""

    def write(*parts: tuple[str, float]):
        log, index = tmp_path / "rank0.log", tmp_path / "rank0.idx"
        for text, at_s in parts:
            with log.open("a") as file:
                file.write(text)
            LineIndex(log, index).extend(at_s)
        return log, index

    return write


def steps(first: int, last: int) -> str:
    return "".join(f"step {step} loss {1 / (step + 1):.4f}\n" for step in range(first, last))


def test_a_step_is_found_at_the_line_that_names_it(write):
    log, index = write((f"starting\n{steps(0, 50)}", 1000.0))

    assert find_line(log, index, 0, None) == LogPlaceFound(1, exact=True)
    assert find_line(log, index, 42, None) == LogPlaceFound(43, exact=True)


def test_a_step_between_two_that_are_named_is_at_the_one_before(write):
    log, index = write(("".join(f"step {step} loss 0.5\n" for step in range(0, 1000, 10)), 1000.0))

    assert find_line(log, index, 427, None) == LogPlaceFound(42, exact=True)


def test_among_a_million_lines_that_came_at_once_a_step_is_found(write):
    log, index = write((steps(0, 1_000_000), 1000.0))

    assert find_line(log, index, 654_321, Moment(1000.0, 990.0, 1010.0)) == LogPlaceFound(654_321, exact=True)


def test_a_log_that_names_no_steps_is_read_by_the_times_of_its_lines(write):
    log, index = write(("working on it\n" * 5_000, 1000.0), ("working on it\n" * 5_000, 2000.0))

    place = find_line(log, index, 7, Moment(1500.0, 1000.0, 2000.0))

    assert place is not None
    assert not place.exact
    assert 4_900 <= place.line <= 6_100


def test_a_step_that_was_never_printed_and_an_empty_log_have_no_line(write):
    log, index = write((steps(0, 20), 1000.0))

    assert find_line(log, index, 500, None) is None
    assert find_line(log.with_name("none.log"), index.with_name("none.idx"), 1, None) is None
