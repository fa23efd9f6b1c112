"""What people type, taken apart."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.shared.arguments import (
    WrongUse,
    by_name,
    duration_s,
    is_memory,
    memory_gib,
    merge,
    pair,
    split_at_dashes,
    start_time,
    typed_duration,
    with_dashes,
)

WORDS = st.lists(
    st.sampled_from(["--lr", "--lr=1", "1e-3", "-0.5", "--amp", "-v", "data", "x y", ""]), max_size=8
)


@pytest.fixture
def time_zone(monkeypatch):
    """Set this machine's time zone by name."""

    def choose(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield choose
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [
        (["--lr", "3e-4", "--amp"], ["--lr", "1e-3"], ["--lr", "1e-3", "--amp"]),
        (["--lr=3e-4", "--amp"], ["--lr", "1e-3"], ["--lr", "1e-3", "--amp"]),
        (["--amp"], ["--seed", "2"], ["--amp", "--seed", "2"]),
        (["data.csv", "--amp"], ["other.csv"], ["other.csv", "--amp"]),
        (["--shift", "-0.5"], ["--shift", "-1"], ["--shift", "-1"]),
        (["--layer", "1", "--layer", "2"], ["--layer", "3"], ["--layer", "3"]),
        (["--sizes", "1", "2", "--amp"], ["--sizes", "4"], ["--sizes", "4", "--amp"]),
    ],
)
def test_new_arguments_replace_old_ones_of_the_same_name(old, new, merged):
    assert merge(old, new) == merged


@given(WORDS, WORDS)
def test_what_is_typed_wins_and_the_rest_stays(old, new):
    assert by_name(merge(old, new)) == by_name(old) | by_name(new)


@given(WORDS)
def test_merging_the_same_arguments_again_changes_nothing(words):
    once = merge(words, words)

    assert merge(once, words) == once


def test_script_may_have_its_own_double_dash():
    assert split_at_dashes(["run", "a.py", "--", "--lr", "1", "--", "x"]) == (
        ["run", "a.py"],
        ["--lr", "1", "--", "x"],
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("45m", 2700), ("2h", 7200), ("1d12h", 129_600), ("1.5h", 5400)],
)
def test_durations_are_read_with_their_units(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "2 hours", "-5m", "1h30x", "٣h", "1e9"])
def test_b43_text_that_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(WrongUse, match="give one such as"):
        duration_s(text)


def test_values_may_have_equal_signs():
    assert pair("URL=a=b") == ("URL", "a=b")


@pytest.mark.parametrize("text", ["NAME", "=x", ""])
def test_a_variable_without_a_name_or_value_is_refused(text):
    with pytest.raises(WrongUse, match="NAME=VALUE"):
        pair(text)


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("4", 4), ("0.5", 0.5), (".5", 0.5), ("4G", 4), ("4g", 4), ("4GB", 4), ("4 GiB", 4), ("4Gi", 4),
        ("512M", 0.5), ("1.5T", 1536), ("2097152k", 2), (" 8 ", 8),
    ],
)  # fmt: skip
def test_memory_is_read_with_and_without_a_unit(text, gib):
    assert is_memory(text)
    assert memory_gib(text) == gib


@pytest.mark.parametrize("text", ["", "G", "4X", "4i", "4B", "-4", "4GG", "1e3", "nan", "four", "4G 2M"])
def test_what_is_no_amount_of_memory_is_refused_with_examples(text):
    assert not is_memory(text)
    with pytest.raises(WrongUse, match="not an amount of memory; give GiB such as 4 or"):
        memory_gib(text)


def test_arguments_are_compared_by_name():
    assert by_name(["in.csv", "--lr=1e-3", "--amp", "--dims", "1", "2"]) == {
        "arguments": "in.csv",
        "lr": "1e-3",
        "amp": "yes",
        "dims": "1 2",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", "2026-11-21T10:00:00+00:00"),
        ("07:30", "2026-11-22T07:30:00+00:00"),
        ("22:15", "2026-11-21T22:15:00+00:00"),
        ("2026-12-01T07:00:00+01:00", "2026-12-01T06:00:00+00:00"),
    ],
)
def test_start_time_is_a_delay_or_the_next_time_of_day(text, expected, time_zone):
    time_zone("UTC")
    now = datetime(2026, 11, 21, 8, tzinfo=UTC)

    assert datetime.fromisoformat(start_time(text, now)) == datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        (
            "2026-10-24T21:00:00+00:00",
            "07:30",
            "2026-10-25T06:30:00+00:00",
        ),  # 23:00 summer time; 7:30 is winter's
        ("2026-03-28T22:00:00+00:00", "07:30", "2026-03-29T05:30:00+00:00"),
        ("2026-10-24T21:00:00+00:00", "2026-10-26 07:30", "2026-10-26T06:30:00+00:00"),
        ("2026-10-24T21:00:00+00:00", "10h", "2026-10-25T07:00:00+00:00"),
    ],
)
def test_f64_time_after_a_clock_change_is_local_wall_time(now, text, expected, time_zone):
    time_zone("Europe/Berlin")

    assert datetime.fromisoformat(start_time(text, datetime.fromisoformat(now))) == datetime.fromisoformat(
        expected
    )


def test_text_that_is_no_time_is_refused():
    with pytest.raises(WrongUse, match="is not a time"):
        start_time("soon")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("run train.py --lr 3e-4", "run train.py -- --lr 3e-4"),
        ("run train.py --lr 3e-4 -g 2 --wait", "run train.py -g 2 --wait -- --lr 3e-4"),
        ("run --lr 3e-4 train.py", "run train.py -- --lr 3e-4"),
        ("run -g2 train.py --amp --lr=1 --steps -5", "run -g2 train.py -- --amp --lr=1 --steps -5"),
        ("run train.py data out", "run train.py -- data out"),
        ("run -g 2 train.py", "run -g 2 train.py"),
    ],
)
def test_what_berth_does_not_know_is_moved_behind_the_dashes(line, meant):
    own = {"-g": True, "--gpus": True, "--wait": False}

    assert " ".join(with_dashes(line.split(), own)) == meant


@pytest.mark.parametrize(
    ("seconds", "typed"), [(90, "1m30s"), (7200, "2h"), (129_600, "1d12h"), (93_784, "1d2h3m4s"), (0, "0s")]
)
def test_a_duration_is_typed_as_it_is_read(seconds, typed):
    assert typed_duration(seconds) == typed
    assert duration_s(typed) == seconds
