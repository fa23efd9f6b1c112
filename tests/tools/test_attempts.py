"""A test that failed beside others runs again alone; a fault stays one."""

from pathlib import Path

import pytest

from tests.tools import attempts

ONCE = """
import pathlib

def test_fails_the_first_time():
    mark = pathlib.Path("seen")
    seen = mark.exists()
    mark.touch()
    assert seen
"""
ALWAYS = "def test_fails(): assert False\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:django\n")
    (tmp_path / "test_sound.py").write_text("def test_holds(): pass\n")
    return tmp_path


def outcome(project: Path, *arguments: str) -> int:
    return attempts.run(["-q", *arguments], project / "cache", root=project)


def test_what_passes_runs_once(project: Path) -> None:
    assert outcome(project) == 0


def test_a_test_that_passes_alone_is_told_and_fails_nobody(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_once.py").write_text(ONCE)

    assert outcome(project, "-n", "2", "--dist", "loadfile") == 0
    assert (
        capfd.readouterr()
        .out.rstrip()
        .endswith("FAILED AT FIRST, PASSED ALONE: test_once.py::test_fails_the_first_time")
    )


def test_a_test_that_fails_twice_fails_all(project: Path) -> None:
    (project / "test_always.py").write_text(ALWAYS)

    assert outcome(project) == 1


def test_one_of_two_that_fails_again_fails_all(project: Path) -> None:
    (project / "test_once.py").write_text(ONCE)
    (project / "test_always.py").write_text(ALWAYS)

    assert outcome(project) == 1


def test_many_failures_are_no_accident(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(attempts.MOST_AGAIN + 1):
        text = ONCE.replace('"seen"', f'"seen{number}"')
        (project / f"test_once_{number}.py").write_text(text)

    assert outcome(project) == 1
    assert "Running again" not in capfd.readouterr().out


def test_a_file_that_cannot_be_read_fails_all(project: Path) -> None:
    (project / "test_broken.py").write_text("def test_(:\n")

    assert outcome(project) != 0
    assert outcome(project, "-n", "2") != 0


def test_no_tests_are_no_success(project: Path) -> None:
    assert outcome(project, "-k", "nothing_of_that_name") != 0
