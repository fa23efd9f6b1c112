"""Parts of a verdict run beside each other, and none hides another."""

import re
import sys
from pathlib import Path

import pytest

from tests.tools.parts import Lanes, Part


def part(name: str, code: str) -> Part:
    return Part(name, (sys.executable, "-c", code))


@pytest.fixture
def lanes(tmp_path: Path) -> Lanes:
    return Lanes(tmp_path / "logs", tmp_path)


def test_all_parts_that_pass_give_success(lanes):
    assert lanes.run([[part("a", ""), part("b", "")], [part("c", "")]]) == 0
    assert {outcome.name for outcome in lanes.outcomes} == {"a", "b", "c"}


def test_a_failing_part_neither_stops_nor_hides_the_parts_after_it(lanes, capfd):
    status = lanes.run(
        [[part("first", "raise SystemExit('lint says no')"), part("second", "print('types say yes')")]]
    )

    printed = capfd.readouterr().out
    assert status == 1
    assert re.search(r"first +FAILED \(exit status 1\)", printed)
    assert "lint says no" in printed
    assert re.search(r"second +ok", printed)


def test_failures_of_several_lanes_are_all_printed_and_stand_last(lanes, capfd):
    fails = "print('line\\n' * 9, 'the reason of', {0!r}); raise SystemExit(3)"
    status = lanes.run([[part("a", fails.format("a"))], [part("b", "")], [part("c", fails.format("c"))]])

    printed = capfd.readouterr().out
    assert status == 1
    assert "the reason of a" in printed
    assert "the reason of c" in printed
    assert [outcome.status for outcome in lanes.outcomes] == [0, 3, 3]


def test_a_program_that_is_missing_fails_its_part_alone(lanes, capfd):
    status = lanes.run([[Part("gone", ("/there/is/no/such/program",)), part("next", "")]])

    assert status == 1
    assert "/there/is/no/such/program cannot be started" in capfd.readouterr().out
    assert [outcome.name for outcome in lanes.outcomes] == ["next", "gone"]


def test_a_part_that_is_killed_fails(lanes):
    assert lanes.run([[part("killed", "import os; os.kill(os.getpid(), 9)")]]) == 1


def test_the_whole_output_of_a_part_is_in_its_log(lanes, tmp_path):
    lanes.run([[part("long", "print('line\\n' * 1000)")]])

    assert (tmp_path / "logs" / "long.log").read_text().count("line") == 1000


def test_what_still_runs_is_said_with_its_last_line(tmp_path, capfd):
    lanes = Lanes(tmp_path / "logs", tmp_path, beat_s=0.01)
    lanes.run([[part("slow", "import time; print('[ 43%]', flush=True); time.sleep(1)")]])

    assert "slow" in capfd.readouterr().out.split("==")[0]
