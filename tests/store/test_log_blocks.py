"""Lines of a log as they are split, found by number and shown, whatever a job wrote and however it arrived."""

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.store.logs import blocks, text
from orchestrator.store.logs import lines as log_lines
from orchestrator.store.logs.lines import (
    EVERY,
    MOST_BYTES,
    LineIndex,
    ReaderLeft,
    count_lines,
    read_index,
    read_lines,
    show_lines,
)
from orchestrator.store.logs.search import search
from orchestrator.store.logs.text import LONGEST_LINE_BYTES, display_text
from orchestrator.supervisor.linux.kernel import punch_hole

MIB = 1 << 20
SHORT = 8  # bytes, in the place of 16 KiB
BYTES = st.lists(
    st.sampled_from([b"\n", b"\r", b"a", b"\0", b"\xff", "é".encode(), "€".encode(), "😀".encode()]),
    max_size=60,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank0.log"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "rank0.idx"


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (text, blocks):
        monkeypatch.setattr(module, "LONGEST_LINE_BYTES", SHORT)


def split_slowly(data: bytes) -> list[bytes]:
    """The lines of a log by the rule, byte by byte."""
    lines, begin, state = [], 0, 0
    for at, byte in enumerate(data):
        if at - state == SHORT and byte not in b"\r\n":
            end = at
            while end > at - 4 and not _is_split(data, end):
                end -= 1
            lines.append(data[begin:end])
            begin = state = end
        if byte in b"\r\n":
            state = at + 1
        if byte in b"\n":
            lines.append(data[begin : at + 1])
            begin = at + 1
    return [*lines, data[begin:]] if begin < len(data) else lines


def _is_split(data: bytes, at: int) -> bool:
    """Whether no character that is begun before ``at`` goes on behind it, as far as its first byte says."""
    for back in (1, 2, 3):
        byte = data[at - back]
        if byte >= 0xC0:
            return back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) or byte >= 0xF8
        if byte < 0x80:
            return True
    return True


@given(BYTES, st.lists(st.integers(1, 20), max_size=8), st.integers(1, 30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_lines_are_split_by_the_rule_however_they_arrive_and_wherever_they_are_read_from(
    monkeypatch, tmp_path_factory, short_lines, parts, sizes, scan_bytes
):
    for name, value in {"EVERY": 3, "SCAN_BYTES": scan_bytes, "FIRST_SCAN_BYTES": scan_bytes}.items():
        monkeypatch.setattr(log_lines, name, value)
    folder = tmp_path_factory.mktemp("logs")
    log, index = folder / "rank0.log", folder / "rank0.idx"
    data = b"".join(parts)
    agent, at = LineIndex(log, index), 0
    for size in [*sizes, len(data)]:
        log.write_bytes(data[: at + size])
        at += size
        agent.extend(1.0)
    expected = split_slowly(data)

    assert agent.seen(at_end=True) == len(expected) == count_lines(log, index)
    assert list(read_index(index)["line"]) == list(range(3, agent.seen() + 1, 3))
    for first in range(len(expected)):
        found = read_lines(log, index, first, 5000)
        assert [line.number for line in found] == list(range(first, len(expected)))
        for line, whole in zip(found, expected[first:], strict=True):
            shown = whole.removesuffix(b"\n").rstrip(b"\r")
            assert shown.endswith(line.data)
            assert line.data == shown or len(whole) > SHORT - 4
            assert display_text(line.data) == display_text(shown).rpartition("\n")[2]
            assert data[line.offset :].startswith(line.data)


def test_a_line_without_end_is_read_in_parts_of_16_kib_each_with_a_number(log, index):
    log.write_bytes(b"first\n" + b"x" * (40 * MIB) + b"end\nlast\n")
    LineIndex(log, index).extend(1.0)
    parts = 40 * MIB // LONGEST_LINE_BYTES

    shown = show_lines(log, index, 0, 5)

    assert [len(line["text"]) for line in shown["lines"]] == [5, *[LONGEST_LINE_BYTES] * 4]
    assert shown["total"] == count_lines(log, index) == parts + 3
    assert [line.data for line in read_lines(log, index, -2, 2)] == [b"end", b"last"]
    assert read_lines(log, index, 2000, 1)[0].offset == 6 + 1999 * LONGEST_LINE_BYTES


def test_a_part_never_ends_inside_a_character(log, index):
    content = "x" + "€" * LONGEST_LINE_BYTES
    log.write_text(content)

    lines = read_lines(log, index, 0, 100)

    assert "".join(line.data.decode() for line in lines) == content
    assert all(LONGEST_LINE_BYTES - 3 < len(line.data) <= LONGEST_LINE_BYTES for line in lines[:-1])


def test_a_line_of_16_kib_is_one_line_and_a_byte_more_makes_two(log, index):
    log.write_bytes(b"x" * LONGEST_LINE_BYTES + b"\r\n" + b"y" * (LONGEST_LINE_BYTES + 1) + b"\n")

    assert [len(line.data) for line in read_lines(log, index, 0, 9)] == [LONGEST_LINE_BYTES] * 2 + [1]


def test_a_progress_bar_of_any_length_is_one_line_with_its_last_state(log, index):
    bar = b"".join(b"%6d of 300000\r" % number for number in range(300_000))
    log.write_bytes(b"before\n" + bar + b"done" + b"\r" * (3 * LONGEST_LINE_BYTES // 2) + b"\nafter\n" + bar)

    lines = read_lines(log, index, 0, 9)

    assert [line.data for line in lines] == [b"before", b"done", b"after", b"299999 of 300000"]
    assert lines[-1].is_open
    assert log.read_bytes()[lines[-1].offset :] == b"299999 of 300000\r"


def test_a_line_keeps_its_place_behind_carriage_returns_without_end(log, index):
    log.write_bytes(b"\r" * (3 * MIB) + b"done\nafter\n")

    lines = read_lines(log, index, 0, 9)

    assert [line.data for line in lines] == [b"done", b"after"]
    assert log.read_bytes()[lines[0].offset :] == b"done\nafter\n"


def test_ten_million_empty_lines_are_counted_and_found(log, index):
    log.write_bytes(b"\n" * 10_000_000)
    agent = LineIndex(log, index)
    while agent.offset < 10_000_000:
        agent.extend(1.0)

    assert count_lines(log, index) == len(read_index(index)) * EVERY == 10_000_000
    assert read_lines(log, index, -1, 1)[0].number == 9_999_999


def test_nul_bytes_are_shown_as_replacements_and_numbers_stay(log, index):
    log.write_bytes(b"a\n" + b"\0" * (2 * LONGEST_LINE_BYTES) + b"\nb\n")

    shown = show_lines(log, index, 0, 9)

    assert [line["text"] for line in shown["lines"]] == [
        "a", "\ufffd" * LONGEST_LINE_BYTES, "\ufffd" * LONGEST_LINE_BYTES, "b"
    ]  # fmt: skip


def test_numbers_of_a_line_without_end_are_the_same_behind_a_dropped_part(log, index):
    log.write_bytes(b"head\n" + b"x" * (60 * MIB))
    LineIndex(log, index).extend(1.0)
    before = {line.number: line.offset for line in read_lines(log, index, 3000, 250)}
    with log.open("r+b") as file:
        punch_hole(file.fileno(), MIB, 30 * MIB)

    assert {line.number: line.offset for line in read_lines(log, index, 3000, 250)} == before
    told = read_lines(log, index, 60, 10)
    assert b"30 MiB dropped" in b"".join(line.data for line in told)
    [mark] = [line for line in told if b"dropped" in line.data]
    assert mark.end == 31 * MIB


def test_an_index_made_when_a_part_was_dropped_already_has_the_numbers_of_the_reader(log, index):
    log.write_bytes(b"x" * (3 * MIB) + b"\n" + b"line\n" * 5000)
    with log.open("r+b") as file:
        punch_hole(file.fileno(), MIB, MIB)
    plain = read_lines(log, index, 4000, 3)

    LineIndex(log, index).extend(1.0)

    assert read_lines(log, index, 4000, 3) == plain


def test_long_lines_are_read_a_few_mib_at_once(log, index):
    log.write_bytes((b"x" * 16_000 + b"\n") * 2000)

    lines = read_lines(log, index, 0, 5000)

    assert MOST_BYTES <= sum(len(line.data) for line in lines) <= MOST_BYTES + 2 * MIB
    found = search(log, index, "x", regex=False, case=True, first=0, limit=1000)
    assert found.total == 2000
    assert found.size_bytes <= MOST_BYTES + 2 * MIB


def test_a_reader_that_leaves_ends_its_read(log, index):
    log.write_bytes(b"x" * (8 * MIB))
    asked = []

    def has_left() -> bool:
        asked.append(True)
        return len(asked) > 2

    with pytest.raises(ReaderLeft):
        count_lines(log, index, has_left)
    with pytest.raises(ReaderLeft):
        search(log, index, "y", regex=False, case=True, first=0, limit=1, has_left=has_left)
    assert len(asked) == 4


def test_reading_a_line_without_end_takes_no_more_memory_than_its_answer(log, index):
    log.write_bytes(b"")
    os.truncate(log, 0)
    with log.open("ab") as file:
        for _ in range(64):
            file.write(b"x" * MIB)
    tracemalloc.start()

    read_lines(log, index, -5, 5)
    count_lines(log, index)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MIB
