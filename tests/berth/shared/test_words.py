import re
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import berth
from berth.cli import tables
from berth.client import Job
from berth.shared import words


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["GPU 3"], "GPU 3"),
        (["GPU 0", "GPU 1", "GPU 3"], "GPUs 0, 1, 3"),
        (["simulated GPU 0", "CPU slot 1", "CPU slot 2"], "simulated GPU 0, CPU slots 1, 2"),
        (["gpu2: GPU 0", "gpu2: GPU 1", "gpu3: GPU 0"], "gpu2: GPUs 0, 1, gpu3: GPU 0"),
        ([], ""),
    ],
)
def test_devices_are_listed_with_their_noun_once(labels, said):
    assert words.listed(labels) == said


@pytest.mark.parametrize(
    ("first_s", "last_s", "said"),
    [
        (-60, 20, "within a minute"),
        (-60, 250, "within 5 min"),
        (10, 4260, "within 1 h 11 min"),
        (360, 540, "in 6 to 9 min"),
        (0, 50, "within a minute"),
        (30, 80, "within 2 min"),
        (0, 4380, "within 1 h 13 min"),
        (3300, 4380, "in 55 min to 1 h 13 min"),
        (3700, 8000, "in 1 h 1 min to 2 h 14 min"),
        (7200, 10_000, "in 2 h to 2 h 47 min"),
        (18_000, 18_000, "in 5 h"),
        (90_000, 200_000, "in 1 d 1 h to 2 d 8 h"),
    ],
)
def test_start_is_a_range_in_words(first_s: float, last_s: float, said: str):
    now = datetime(2026, 11, 21, tzinfo=UTC)
    earliest, latest = (now + timedelta(seconds=each) for each in (first_s, last_s))
    assert words.start_range(earliest, latest, now) == said


UNITS_S = {"d": 86_400, "h": 3_600, "min": 60, "minute": 60}


def ends_of(said: str) -> tuple[int, int]:
    """The range that words name, in seconds."""
    times = [
        sum(
            int(count.replace("a", "1")) * UNITS_S[unit]
            for count, unit in re.findall(r"(\d+|\ba) (\w+)", part)
        )
        for part in re.sub(r"^in (\d+) to (\d+ min)$", r"in \1 min to \2", said).split(" to ")
    ]
    return (0 if said.startswith("within") else times[0]), times[-1]


LONG_S = st.floats(0, 10 * 86_400)


@given(first_s=LONG_S, more_s=LONG_S, later_low_s=LONG_S, later_more_s=LONG_S)
def test_what_is_later_in_seconds_is_never_earlier_in_words(first_s, more_s, later_low_s, later_more_s):
    last_s = first_s + more_s

    start = ends_of(words.span(first_s, last_s))
    end = ends_of(words.span(first_s + later_low_s, last_s + later_low_s + later_more_s))

    assert start[0] <= end[0]
    assert start[1] <= end[1]


@given(first_s=LONG_S, more_s=LONG_S)
def test_a_range_in_words_holds_the_range_in_seconds(first_s, more_s):
    low, high = ends_of(words.span(first_s, first_s + more_s))

    assert low <= first_s
    assert first_s + more_s <= high


@pytest.mark.parametrize(
    ("number", "said"), [(None, ""), (10**7, "10,000,000"), (0.00012345, "0.000123"), (512_345.6, "512,346")]
)
def test_whole_numbers_are_written_in_full_and_others_with_four_digits(number: float | None, said: str):
    assert words.value(number) == said


def test_the_version_of_the_command_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]

    assert berth.__version__ == project["version"]


def test_a_clock_that_is_behind_the_servers_moves_nothing_into_the_future():
    submitted_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    json = {"name": "a", "short_id": "1", "state": "queued", "started_at": None, "submitted_at": submitted_at}

    assert tables._time(Job(json, None)) == "now"  # type: ignore[arg-type]
