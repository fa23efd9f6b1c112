"""Faults are found where they are, and put in so that Python still reads the file."""

from pathlib import Path

import pytest

from tests.mutants.faults import faults_of
from tests.mutants.room import NoSuchRoom, equivalents, find_room, sample
from tests.tools.choice import ROOT


def changes(tmp_path: Path, text: str) -> set[str]:
    (tmp_path / "module.py").write_text(text)
    return {fault.applied_to(text) for fault in faults_of(tmp_path, "module.py")}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("x = a < b\n", "x = a <= b\n"),
        ("x = a not in b\n", "x = a in b\n"),
        ("x = a and b\n", "x = ((a) or (b))\n"),
        ("x = not a\n", "x = bool(a)\n"),
        ("x = a + 1\n", "x = ((a) - (1))\n"),
        ("x = min(a, b)\n", "x = max(a, b)\n"),
        ("if a:\n    x()\n", "if not (a):\n    x()\n"),
        ("for a in b:\n    continue\n", "for a in b:\n    pass\n"),
        ("x = 'ä', a == b\n", "x = 'ä', a != b\n"),
    ],
)
def test_a_place_is_changed_to_its_fault(tmp_path, text, changed):
    assert changes(tmp_path, text) == {changed}


@pytest.mark.parametrize("text", ["x = 'a' + b\n", "x = [1] + b\n", "x = (a <\n     b)\n", "x = a\n"])
def test_what_would_be_noticed_by_anything_or_spans_lines_is_left_alone(tmp_path, text):
    assert changes(tmp_path, text) == set()


def test_a_fault_names_its_function(tmp_path):
    (tmp_path / "module.py").write_text("def outer():\n    def inner():\n        return a < b\n")

    assert [fault.function for fault in faults_of(tmp_path, "module.py")] == ["inner"]


def test_the_same_seed_gives_the_same_sample():
    room = find_room("orchestrator/store")

    assert sample(room, 10, 3) == sample(room, 10, 3)
    assert sample(room, 10, 3) != sample(room, 10, 4)
    assert room.tests == ["tests/store"]


def test_an_unknown_room_is_refused_with_a_sentence():
    with pytest.raises(NoSuchRoom, match="There is no room 'cellar' here"):
        find_room("cellar")


def test_each_known_equivalent_is_still_a_fault_of_its_file_and_has_a_reason():
    stale = [
        each
        for each in equivalents()
        if (each["function"], each["old"], each["new"])
        not in {(fault.function, fault.old, fault.new) for fault in faults_of(ROOT, each["file"])}
    ]

    assert stale == []
    assert all(len(each["reason"]) > 20 for each in equivalents())
