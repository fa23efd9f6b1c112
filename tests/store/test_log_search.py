"""Searching a log: every line counted once, a page of them returned, no expression that never ends."""

import random
from pathlib import Path

import pytest

from orchestrator.exceptions import Malformed
from orchestrator.store.logs.lines import LineIndex, read_lines
from orchestrator.store.logs.search import SearchResult, search


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """60,000 lines of unequal length; every thousandth says ERROR, one says error."""
    lengths = random.Random(7)  # noqa: S311  # lengths of lines
    lines = [f"step {n} {'x' * lengths.randrange(80)}" for n in range(60_000)]
    for n in range(0, 60_000, 1000):
        lines[n] += " ERROR (a+b)*"
    lines[1234] += " error äöü"
    path = tmp_path / "rank0.log"
    path.write_text("\n".join(lines))
    LineIndex(path, path.with_suffix(".idx")).extend(0.0)
    return path


def look(
    log: Path, query: str, *, regex: bool = False, case: bool = False, first: int = 0, limit: int = 100
) -> SearchResult:
    return search(log, log.with_suffix(".idx"), query, regex=regex, case=case, first=first, limit=limit)


def test_every_line_that_holds_the_text_is_counted(log):
    found = look(log, "ERROR", case=True)

    assert found.total == 60
    assert [hit.number for hit in found.hits] == list(range(0, 60_000, 1000))


def test_without_case_both_spellings_count(log):
    assert look(log, "Error").total == 61


def test_a_page_begins_where_it_is_asked_to_and_the_total_stays(log):
    found = look(log, "ERROR", case=True, first=30_500, limit=3)

    assert found.total == 60
    assert [hit.number for hit in found.hits] == [31_000, 32_000, 33_000]


def test_an_offset_leads_to_its_line(log):
    data = log.read_bytes()

    for hit in look(log, "ERROR", case=True, first=57_000).hits:
        assert data[hit.offset :].startswith(hit.data)
        assert hit.data.startswith(f"step {hit.number} ".encode())


def test_numbers_are_those_of_the_lines_by_number(log):
    hit = look(log, "äöü").hits[0]

    assert read_lines(log, log.with_suffix(".idx"), hit.number, 1)[0].data == hit.data


def test_what_has_a_meaning_in_expressions_is_text_unless_it_is_one(log):
    assert look(log, "(a+b)*").total == 60
    assert look(log, r"\(a\+b\)\*", regex=True).total == 60


def test_an_expression_sees_the_ends_of_lines(log):
    assert look(log, r"^step 59999 x*$", regex=True).total == 1
    assert look(log, r"(a+)+$", regex=True).total == 0


def test_one_that_would_hold_others_for_hours_takes_linear_time(tmp_path):
    path = tmp_path / "rank0.log"
    path.write_bytes(b"a" * 100_000 + b"!\n")

    assert look(path, r"(a*)*b", regex=True).total == 0


@pytest.mark.parametrize("query", ["(", "[a", "*", r"\1(x)", "a{2000}{2000}"])
def test_an_expression_that_cannot_be_read_is_named(log, query):
    with pytest.raises(Malformed) as refused:
        look(log, query, regex=True)
    assert "cannot be read" in refused.value.fields["q"][0]


@pytest.mark.parametrize("query", ["", "x" * 201])
def test_an_empty_or_endless_query_is_refused(log, query):
    with pytest.raises(Malformed):
        look(log, query)


def test_a_missing_log_holds_nothing(tmp_path):
    assert look(tmp_path / "none.log", "x").total == 0


@pytest.mark.code("F90")
def test_a_part_that_was_dropped_is_passed_over_and_numbers_go_on(log):
    from orchestrator.supervisor.linux.kernel import punch_hole

    before = {hit.number for hit in look(log, "ERROR", case=True).hits}
    with log.open("r+b") as file:
        punch_hole(file.fileno(), 1 << 20, 1 << 20)

    after = look(log, "ERROR", case=True)

    assert 0 < after.total < 60
    assert {hit.number for hit in after.hits} <= before


def test_counting_by_expression_stops_where_nobody_would_page(log):
    found = look(log, "step", regex=True)

    assert found.more
    assert 20_000 <= found.total < 60_000
