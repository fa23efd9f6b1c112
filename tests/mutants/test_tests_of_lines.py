"""The tests of a line are found by running them, and run alone or left out."""

import json
import os
import subprocess
import sys

import pytest

from tests.mutants.tests_of_lines import NOTE_OF, NOTE_TO, ONLY, WITHOUT, Notes
from tests.tools.choice import ROOT

MODULE = """
def sign(number):
    if number < 0:
        return -1
    return 1
"""
TESTS = """
import threading
import time

import module


def test_slow():
    time.sleep(0.2)
    assert module.sign(-3) == -1


def test_thread():
    thread = threading.Thread(target=module.sign, args=(-1,))
    thread.start()
    thread.join()


def test_other():
    assert module.sign(3) == 1
"""
NEGATIVE, POSITIVE = 4, 5  # lines of the module


@pytest.fixture
def run(tmp_path):
    """Run the tests with these values in the environment: which ran, in their order."""
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "test_module.py").write_text(TESTS)

    def runner(**values):
        command = [
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:django",
            "-p",
            "tests.mutants.tests_of_lines",
        ]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", **values}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.split()[0].partition("::")[2] for line in done.stdout.splitlines() if " PASSED" in line]

    return runner


@pytest.fixture
def notes(tmp_path, run):
    run(**{NOTE_TO: str(tmp_path / "notes.json"), NOTE_OF: json.dumps(["module.py"])})
    return Notes.read(tmp_path / "notes.json")


def test_a_line_has_the_tests_that_run_it_also_in_a_thread_the_quickest_first(notes):
    assert notes.tests_of("module.py", NEGATIVE) == [
        "test_module.py::test_thread",
        "test_module.py::test_slow",
    ]
    assert notes.tests_of("module.py", POSITIVE) == ["test_module.py::test_other"]
    assert notes.tests_of("module.py", 1000) == []


def test_chosen_tests_run_in_their_order_and_the_others_without_them(tmp_path, run):
    path = tmp_path / "tests.json"
    path.write_text(json.dumps(["test_module.py::test_other", "test_module.py::test_slow"]))

    assert run(**{ONLY: str(path)}) == ["test_other", "test_slow"]
    assert run(**{WITHOUT: str(path)}) == ["test_thread"]
