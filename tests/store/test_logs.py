"""Logs by offset and by line, with holes, and as text that is safe to show."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.logs.chunks import read_log, read_tail
from orchestrator.store.logs.lines import EVERY, LineIndex, count_lines, read_index, read_lines
from orchestrator.store.logs.text import LONGEST_LINE_BYTES, display_text, split_lines, unfinished_bytes

MIB = 1 << 20


@pytest.fixture
def log(tmp_path):
    return tmp_path / "rank0.log"


@pytest.fixture
def punched(log):
    """A log with a hole from 1 MiB to 3 MiB, as the supervisor's cap leaves it."""
    log.write_bytes(b"".join(b"%07d\n" % number for number in range(MIB // 2)))
    done = subprocess.run(["fallocate", "-p", "-o", str(MIB), "-l", str(2 * MIB), str(log)], check=False)
    if done.returncode:
        pytest.skip("this file system cannot punch holes")
    return log


def test_a_log_is_read_on_from_an_offset(log):
    log.write_bytes(b"one\ntwo\n")

    first = read_log(log, 0, 5)
    second = read_log(log, first.next_offset, 100)

    assert (first.data, first.next_offset, first.size) == (b"one\nt", 5, 8)
    assert (second.data, second.next_offset) == (b"wo\n", 8)


def test_a_missing_log_is_empty(log):
    assert read_log(log, 100, 100).data == b""
    assert read_log(log, -5, 100).next_offset == 0


def test_offsets_beyond_the_end_give_the_end(log):
    log.write_bytes(b"abc")

    assert read_log(log, 99, 10).next_offset == 3


def test_a_negative_offset_counts_from_the_end(log):
    log.write_bytes("aaaé".encode())

    assert read_log(log, -2, 100).data == "é".encode()
    assert read_log(log, -1, 100).data == b""  # in the middle of a character


@pytest.mark.code("B55")
def test_chunks_never_cut_a_character(log):
    text = "aé\u20ac\U0001f600" * 50
    log.write_bytes(text.encode())

    offset, parts = 0, []
    while (chunk := read_log(log, offset, 7)).data:
        parts.append(chunk.data.decode())
        offset = chunk.next_offset

    assert "".join(parts) == text


def test_half_a_character_at_the_end_waits_and_then_is_given_out(log):
    log.write_bytes(b"ab\xe2\x82")

    first = read_log(log, 0, 100)
    rest = read_log(log, first.next_offset, 100)

    assert first.data == b"ab"
    assert rest.data == b"\xe2\x82"


def test_whole_lines_end_at_a_newline_where_there_is_one(log):
    log.write_bytes(b"one\ntwo\n" + b"x" * 50)

    assert read_log(log, 0, 6, whole_lines=True).data == b"one\n"
    assert read_log(log, 8, 20, whole_lines=True).data == b"x" * 20


@pytest.mark.code("F90")
def test_a_log_of_terabytes_that_were_dropped_is_counted_and_indexed_at_once(log, tmp_path):
    log.write_bytes(b"first\n")
    os.truncate(log, 1 << 42)
    with log.open("ab") as file:
        file.write(b"end of the long line\n" + b"more\n" * 2000)
    index = LineIndex(log, tmp_path / "rank0.idx")

    assert index.extend(1.0) == count_lines(log, tmp_path / "none.idx") == 2003  # one tells of the part
    assert [int(line) for line in read_index(tmp_path / "rank0.idx")["line"]] == [1000, 2000]
    os.truncate(log, 6)
    assert index.extend(2.0) == 2003
    os.truncate(log, 1 << 42)
    assert count_lines(log, tmp_path / "none.idx") == 2


def test_dropped_parts_are_shown(punched):
    chunk = read_log(punched, MIB - 8, 100, whole_lines=True)

    assert chunk.data == b"0131071\n[... 2 MiB dropped here ...]\n" + b"".join(
        b"%07d\n" % number for number in range(393216, 393216 + 7)
    )
    assert chunk.dropped_bytes == 2 * MIB
    assert read_log(punched, chunk.next_offset, 8).data == b"0393223\n"


def test_reading_through_a_hole_in_pieces_says_it_once(punched):
    offset, data = MIB - 4096, b""
    while offset < 3 * MIB + 4096:
        chunk = read_log(punched, offset, 1000)
        data += chunk.data
        offset = chunk.next_offset

    assert data.count(b"dropped here") == 1
    assert b"\0" not in data


def test_a_hole_to_the_end_is_shown_too(log):
    log.write_bytes(b"start\n")
    os.truncate(log, 10 * MIB)

    chunk = read_log(log, 0, 10_000)

    assert chunk.next_offset == 10 * MIB
    assert chunk.data.count(b"dropped here") == 1


def test_the_tail_is_the_last_lines(log):
    log.write_bytes(b"1\n2\n3\n4")

    assert read_tail(log, 2).data == b"3\n4"
    assert read_tail(log, 2).offset == 4
    assert read_tail(log, 100).data == b"1\n2\n3\n4"

    log.write_bytes(b"\n1\n2\n")
    assert read_tail(log, 2).data == b"1\n2\n", "without the empty line before them"
    assert read_tail(log, 3).data == b"\n1\n2\n"


@pytest.mark.parametrize("replace", [lambda log: log.symlink_to(__file__), os.mkfifo, Path.mkdir])
def test_what_a_job_put_in_the_place_of_its_log_is_no_log(log, tmp_path, replace):
    replace(log)

    assert read_log(log, 0, 10).data == b""
    assert read_lines(log, tmp_path / "i", -5, 5) == []
    assert LineIndex(log, tmp_path / "i").extend(1.0) == 0


@pytest.mark.parametrize(
    ("shown", "data"),
    [
        ("\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m"),
        ("ab", b"a\x1b[2K\x1b[10;5Hb"),
        ("ab", b"a\x1b]0;title\x07b"),
        ("click", b"\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\"),
        ("ab", b"a\x1b]52;c;ZXZpbA==\x07b"),
        ("ab", b"a\x1bP1$r0m\x1b\\b"),
        ("ab", b"a\x1b7\x1b8\x1bc\x1b(Bb"),
        ("ab", b"a\x07\x08\x0e\x7fb"),
        ("a", b"a\x1b["),
        ("ab", "a\u009b31mb".encode().replace(b"31m", b"")),
        ("a\nnext", b"a\x1b]0;never closed\nnext"),
    ],
)
@pytest.mark.code("B53")
def test_colours_stay_and_everything_else_that_acts_goes(data, shown):
    assert display_text(data) == shown


@pytest.mark.code("B54")
def test_markup_is_left_as_text():
    assert display_text(b"<script>alert(1)</script>") == "<script>alert(1)</script>"


@pytest.mark.parametrize("data", [b"a\0b", b"a\xffb", b"a\xed\xa0\x80b", b"a\xc3(b"])
@pytest.mark.code("B55")
def test_what_is_no_text_is_replaced(data):
    text = display_text(data)

    assert "\ufffd" in text
    text.encode()


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" 1%|  \r 50%|# \r100%|##\ndone\n", "100%|##\ndone\n"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"10%\r20%\r", "20%"),
        (b"one\n1\r2\r3\nfour", "one\n3\nfour"),
    ],
)
@pytest.mark.code("B57")
def test_progress_bars_show_their_last_state(data, shown):
    assert display_text(data) == shown


@pytest.mark.code("F90")
def test_a_line_without_end_is_split():
    text = display_text(b"x" * (3 * LONGEST_LINE_BYTES + 5))

    assert [len(line) for line in text.split("\n")] == [LONGEST_LINE_BYTES] * 3 + [5]


@given(st.binary(max_size=300))
def test_any_bytes_can_be_shown(data):
    text = display_text(data)

    text.encode()
    assert not any((ord(c) < 32 and c not in "\n\t\x1b") or 0x7F <= ord(c) < 0xA0 for c in text)


@pytest.mark.parametrize(
    "piece", [b"\x1b[" * 50_000, b"\x1b]" * 50_000, b"\r" * 100_000, b"a\r" * 50_000, b"\x1b[1" * 30_000]
)
def test_hostile_logs_take_linear_time(piece):
    start_s = time.thread_time()  # of the processor: others may have it in between

    display_text(piece)

    assert time.thread_time() - start_s < 0.5


def test_lines_and_their_rest_join_over_chunks():
    data = b"one\r\ntwo\nthr"

    lines, carry = split_lines(data)
    more, rest = split_lines(b"ee\n", carry)

    assert (lines, carry) == ([b"one", b"two"], b"thr")
    assert (more, rest) == ([b"three"], b"")


def test_states_of_a_bar_can_be_lines():
    assert split_lines(b"1%\r2%\r", at_returns=True) == ([b"1%", b"2%"], b"")
    assert split_lines(b"1%\x1b[1G2%\x1b[G3", at_returns=True) == ([b"1%", b"2%"], b"3")


def test_a_line_that_a_cursor_overwrites_shows_its_last_state():
    assert display_text(b"step 1\x1b[1Gstep 2\x1b[2K\x1b[0Gstep 3\n") == "step 3\n"


@given(st.binary(max_size=200), st.lists(st.integers(1, 40), max_size=10))
def test_lines_do_not_depend_on_how_data_arrives(data, sizes):
    whole, whole_rest = split_lines(data)
    lines, carry, at = [], b"", 0
    for size in [*sizes, len(data)]:
        part, carry = split_lines(data[at : at + size], carry)
        lines += part
        at += size

    assert (lines, carry) == (whole, whole_rest)


@pytest.mark.code("F90")
def test_the_rest_never_grows_beyond_a_line():
    lines, carry = split_lines(b"x" * 100_000)

    assert b"".join(lines) + carry == b"x" * 100_000
    assert len(carry) < LONGEST_LINE_BYTES


@given(st.text(min_size=1, max_size=5), st.integers(0, 3))
def test_unfinished_bytes_are_those_of_the_last_character(text, cut):
    data = text.encode()
    last = len(text[-1].encode())
    cut = min(cut, last - 1)

    assert unfinished_bytes(data[: len(data) - cut]) == (last - cut if cut else 0)


def numbered(count):
    return b"".join(b"line %d\n" % number for number in range(count))


def test_lines_are_found_by_number(log, tmp_path):
    index = tmp_path / "rank0.idx"
    log.write_bytes(numbered(3500) + b"half")
    assert LineIndex(log, index).extend(5.0) == 3500

    assert index.stat().st_size == 3 * 24
    assert [line.data for line in read_lines(log, index, 2999, 2)] == [b"line 2999", b"line 3000"]
    assert [line.data for line in read_lines(log, index, -2, 9)] == [b"line 3499", b"half"]
    assert read_lines(log, index, 9999, 5) == []
    assert count_lines(log, index) == 3501
    line = read_lines(log, index, 2222, 1)[0]
    assert read_log(log, line.offset, 9).data == b"line 2222"


def test_the_index_grows_in_any_pieces_and_through_restarts(log, tmp_path):
    index, whole = tmp_path / "rank0.idx", tmp_path / "whole.idx"
    data = numbered(5 * EVERY)
    log.write_bytes(b"")
    for at in range(0, len(data), 7919):
        with log.open("ab") as file:
            file.write(data[at : at + 7919])
        LineIndex(log, index).extend(1.0)
        with index.open("ab") as file:
            file.write(b"torn")

    LineIndex(log, index).extend(1.0)
    LineIndex(log, whole).extend(1.0)

    assert index.read_bytes()[: 5 * 24] == whole.read_bytes()


def test_a_large_log_is_indexed_in_turns(log, tmp_path):
    index = LineIndex(log, tmp_path / "i")
    log.write_bytes(numbered(400_000))

    turns: list[int] = []
    while not turns or turns[-1] < 400_000:
        turns.append(index.extend(1.0, most_bytes=MIB))

    assert len(turns) > 3
    assert read_lines(log, tmp_path / "i", 399_999, 2)[0].data == b"line 399999"


def test_lines_without_an_index_are_found_too(log, tmp_path):
    log.write_bytes(numbered(50))

    assert read_lines(log, tmp_path / "no.idx", 48, 9)[-1].data == b"line 49"
    assert read_lines(tmp_path / "no.log", tmp_path / "no.idx", 0, 9) == []


def test_numbers_go_on_behind_a_dropped_part(log, tmp_path):
    log.write_bytes(b"".join(b"%07d\n" % number for number in range(MIB // 2)))
    LineIndex(log, tmp_path / "i").extend(1.0)
    if subprocess.run(
        ["fallocate", "-p", "-o", str(MIB), "-l", str(2 * MIB), str(log)], check=False
    ).returncode:
        pytest.skip("this file system cannot punch holes")

    lines = read_lines(log, tmp_path / "i", 400_000, 3)

    assert [line.data for line in lines] == [b"0400000", b"0400001", b"0400002"]
    assert b"dropped" in b"".join(line.data for line in read_lines(log, tmp_path / "i", 131_000, 200))
    assert [line.number for line in read_lines(log, tmp_path / "i", 250_000, 3)] == [
        250_000
    ]  # that it was dropped
    behind = read_lines(
        log, tmp_path / "i", 393_216, 2
    )  # the first lines behind it, between two indexed ones
    assert [(line.number, line.data) for line in behind] == [(393_216, b"0393216"), (393_217, b"0393217")]
    assert read_log(log, behind[0].offset, 7).data == b"0393216"


@pytest.mark.slow
def test_a_million_lines_are_indexed_and_found_quickly(log, tmp_path):
    log.write_bytes(numbered(1_000_000))
    start = time.perf_counter()
    LineIndex(log, tmp_path / "i").extend(1.0)
    indexed = time.perf_counter()
    read_lines(log, tmp_path / "i", 765_432, 200)
    read_lines(log, tmp_path / "i", -200, 200)
    found = time.perf_counter()

    assert indexed - start < 3
    assert found - indexed < 0.1 * 5  # 100 ms each on a quiet machine
