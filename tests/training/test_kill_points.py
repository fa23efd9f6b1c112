"""Trainings that are killed at random moments come to the same end, bit by bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.started import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
KILLS = 20  # `make bench NAME=resume` kills 100 times


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_f17_every_kill_resumes_bit_for_bit_with_each_sample_once(workers: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kill_points", str(KILLS), str(workers)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["equal"], found["kills"]) == (KILLS, KILLS), found["wrong"]
    assert len(found["resumed_after"]) >= 4  # else all kills fell into the same moment
