"""What a step costs beyond the arithmetic: CPU time of the training thread, against a raw DDP loop and rivals."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.stats import median, spread

ROUNDS = 9
FIGURES = (
    Figure("step_cpu_ratio", "x", "our Trainer, reporting each step, over a raw DDP loop", target=1.05),
    Figure("step_added_us", "us", "what our Trainer adds to a step of the raw loop", target=45),
    Figure("step_cpu_ratio_tensors", "x", "the same on a TensorDataset, which ours reads by the batch"),
    Figure("accelerate_step_cpu_ratio", "x", "Accelerate, reporting nothing"),
    Figure("lightning_step_cpu_ratio", "x", "Lightning, writing the loss of each step to a CSV file"),
)
_RIVALS = {"accelerate": "accelerate_step_cpu_ratio", "lightning": "lightning_step_cpu_ratio"}


def measure() -> Outcome:
    outcome = Outcome()
    there = [name for name in _RIVALS if _is_installed(name)]
    outcome.missing = {_RIVALS[name]: f"{name} is not installed" for name in _RIVALS if name not in there}
    took_s = _run("raw", "ours", "ours_on_tensors", *there)
    ratios = {
        name: [mine / raw for mine, raw in zip(times, took_s["raw"], strict=True)]
        for name, times in took_s.items()
    }
    outcome.figures["step_cpu_ratio"] = median(ratios["ours"])
    outcome.figures["step_cpu_ratio_tensors"] = median(ratios["ours_on_tensors"])
    added_s = [mine - raw for mine, raw in zip(took_s["ours"], took_s["raw"], strict=True)]
    outcome.figures["step_added_us"] = median(added_s) * 1e6
    for name in there:
        outcome.figures[_RIVALS[name]] = median(ratios[name])
    for name, times in took_s.items():
        outcome.details[f"{name}_us"] = spread([each * 1e6 for each in times])
    return outcome


def _run(*names: str) -> dict[str, list[float]]:
    """CPU seconds a step of each contender in each round, all in the same two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        subprocess.run(
            [sys.executable, *launch, "-m", "benchmarks.steps", folder, str(ROUNDS), *names],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        took_s: dict[str, list[float]] = json.loads((Path(folder) / "steps.json").read_text())
    return took_s


def _is_installed(name: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode == 0
