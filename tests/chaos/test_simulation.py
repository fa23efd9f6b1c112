"""Simulated histories: those of continuous integration; `python -m tests.chaos.simulation` runs any number."""

import os
import subprocess
import sys

import pytest

from tests.system.server import REPOSITORY

HISTORIES = 40


@pytest.mark.slow
@pytest.mark.timeout(1800)  # takes 40 s of a processor, ten times as long on a busy machine
def test_nothing_is_lost_doubled_or_stuck_in_simulated_histories():
    """In a process of its own, because the clock is bent for all of it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.simulation", "--histories", str(HISTORIES)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
