"""A worker whose test hangs in its cleanup is ended and told, and the other tests still run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import hangs

CONFTEST = """
from pathlib import Path
from tests.tools import hangs, turns

hangs.GRACE_S = 2

def pytest_configure(config):
    hangs.watch(config, Path(__file__).parent / "stacks")

def pytest_xdist_make_scheduler(config, log):
    return turns.ByFile(config, log)
"""
TESTS = """
import time
import pytest

@pytest.fixture
def holds():
    yield
    while True:
        time.sleep(60)

@pytest.mark.timeout(1)
def test_that_hangs(holds):
    time.sleep(60)

def test_after_it():
    assert 1 + 1 == 3
"""


@pytest.fixture
def run(tmp_path: Path) -> str:
    """What pytest prints with two workers."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = ["-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", "-q", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={"PYTHONPATH": str(Path(hangs.__file__).parents[2]), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_a_test_that_hangs_after_its_timeout_ends_its_worker_and_no_other_test(run):
    told, _, summary = run.partition("= FAILURES =")

    assert "FAILED test_some.py::test_that_hangs" in told
    assert 'test_some.py", line 9 in holds' in told  # where it hangs
    assert "FAILED test_some.py::test_after_it (call)" in told
    assert "assert (1 + 1) == 3" in told
    assert "\n3 failed" in summary  # the one that hangs by its timeout and by its end
