"""The Pythons that jobs run with, asked and tried before the first job finds out."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.jobs.launch import interpreters, isolation
from tests.conftest import lacking


@pytest.fixture
def hidden_home(monkeypatch, home) -> Iterator[Path]:
    """The home of the user that runs Berth; not below /tmp, which is hidden anyway."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        monkeypatch.setenv("HOME", name)
        yield Path(name)


def write_wrapper(path: Path, command: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_python_names_its_environment_and_its_installation(home):
    roots = interpreters.roots(sys.executable)

    assert {sys.prefix, sys.base_prefix} <= set(roots)
    assert interpreters.warning() is None


def test_a_python_that_starts_only_outside_of_the_sandbox_is_named_with_the_reason(hidden_home):
    if isolation.level() < 1:
        lacking("a bubblewrap that works")
    tool = write_wrapper(hidden_home / "tools/start", sys.executable)
    shim = write_wrapper(hidden_home / "bin/python", str(tool))

    with pytest.raises(interpreters.DoesNotStart, match=r"not in the sandbox of a job \(.*tools/start"):
        interpreters.roots(str(shim))


def test_a_python_that_does_not_start_at_all_is_named_with_its_words(hidden_home):
    broken = write_wrapper(hidden_home / "bin/python", "/no/such/python")

    with pytest.raises(interpreters.DoesNotStart, match=r"does not start: .*/no/such/python"):
        interpreters.roots(str(broken))


def test_missing_python_is_named(home):
    with pytest.raises(interpreters.DoesNotStart, match="/no/such/python cannot be used"):
        interpreters.roots("/no/such/python")


def test_start_of_berth_warns_when_its_own_python_runs_no_job(hidden_home, monkeypatch):
    shim = write_wrapper(hidden_home / "bin/python", "/no/such/python")
    monkeypatch.setattr(sys, "executable", str(shim))

    warning = interpreters.warning()

    assert warning is not None
    assert warning.startswith("No job can run: ")
