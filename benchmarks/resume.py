"""A training that is killed at random moments and resumed: the same losses and weights, bit by bit."""

import json
import os
import subprocess
import sys

from benchmarks.figures import ROOT, Figure, Outcome

KILLS = 100  # with and without processes that load data
FIGURES = (
    Figure(
        "kill_points_ok",
        "",
        "kills after which losses, weights and samples came out equal",
        target=2 * KILLS,
        at_least=True,
    ),
    Figure("kill_points", "", "kills at random moments, half of them with two data workers"),
)


def measure() -> Outcome:
    outcome = Outcome({"kill_points_ok": 0, "kill_points": 0})
    for workers in (0, 2):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kill_points", str(KILLS), str(workers)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(done.stdout)
        outcome.figures["kill_points_ok"] += found["equal"]
        outcome.figures["kill_points"] += found["kills"]
        outcome.details[f"{workers} workers"] = found
    return outcome
