"""What it adds to a tracker's call that Berth reads its scalars too."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.stats import median, spread

FIGURES = (Figure("tee_us", "us", "added to Run.log() of a loss tensor and a number, median", target=20),)
STEPS = 5_000
TRACKER = "class Run:\n    def log(self, data, step=None, commit=None):\n        pass\n"


def measure() -> Outcome:
    outcome = Outcome()
    measure_tee(outcome, STEPS)
    return outcome


def measure_tee(outcome: Outcome, steps: int) -> None:
    """In a rank of its own, which the entry starts as it starts a job's."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        folder = Path(name)
        for part in ("logs", "errors", "finished"):
            (folder / part).mkdir()
        package = folder / "wandb" / "sdk"
        package.mkdir(parents=True)
        for path, text in ((package.parent / "__init__.py", ""), (package / "wandb_run.py", TRACKER)):
            path.write_text(text)
        script = folder / "teeing.py"
        shutil.copy(ROOT / "benchmarks" / "scripts" / "teeing.py", script)
        done = subprocess.run(
            [sys.executable, "-u", str(ROOT / "training" / "entry.py"), str(script), str(steps)],
            env={
                **os.environ,
                "BERTH_ATTEMPT_FOLDER": name,
                "BERTH_METRICS_FILE": f"{name}/metrics.jsonl",
                "RANK": "0",
            },
            cwd=folder,
        )
        log = (folder / "logs" / "rank0.log").read_text()
        if done.returncode:
            raise RuntimeError(log)
        written = (folder / "metrics.jsonl").read_text().count('"loss"')
    if written != steps:
        raise RuntimeError(f"{written} values were written for {steps} calls")
    took_us = [float(line) for line in log.split()]
    outcome.figures["tee_us"] = median(took_us)
    outcome.details["tee_us"] = spread(took_us)
