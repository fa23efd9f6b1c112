"""Trainings that are killed at random moments come to the same end, bit by bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_f17_fifty_of_fifty_kills_resume_bit_by_bit_with_each_sample_once(workers: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kill_points", "50", str(workers)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["equal"], found["kills"]) == (50, 50), found["wrong"]
    assert len(found["resumed_after"]) >= 4  # else all kills fell into the same moment
