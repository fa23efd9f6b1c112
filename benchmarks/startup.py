"""How long from the start of two ranks to their first optimizer step, and what importing us adds to importing torch."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.stats import median, spread
from training.launch import WarmLauncher, torchrun_command

FIGURES = (
    Figure(
        "import_added_ms",
        "ms",
        "CPU time of importing the training library, on top of torch, median",
        target=100,
    ),
    Figure("warm_start_s", "s", "warm launcher: two ranks to the first step, median", target=0.3),
    Figure("torchrun_start_s", "s", "torchrun: two ranks of our Trainer to the first step, median"),
    Figure("raw_torchrun_start_s", "s", "torchrun: two ranks of plain DDP to the first step, median"),
    Figure(
        "torchrun_added_s", "s", "the Trainer's over plain DDP's under torchrun, median of pairs", target=0.2
    ),
)
SCRIPT = ROOT / "benchmarks" / "scripts" / "first_step.py"
WARM_ROUNDS, COLD_ROUNDS, IMPORT_ROUNDS = 15, 7, 7
STEPPED = re.compile(rb"stepped (\S+)")
IMPORT_TORCH = (
    "import time, torch; start = time.process_time(); {}; print(1000 * (time.process_time() - start))"
)


def measure() -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        folder = Path(name)
        _measure_import(outcome)
        _measure_warm(folder, outcome)
        _measure_torchrun(folder, outcome)
    return outcome


def _measure_import(outcome: Outcome) -> None:
    """All that a training needs; the optimizer's own torch._dynamo, which any training loads, comes first."""
    needed = "import torch._dynamo; start = time.process_time(); from training import Trainer, TrainConfig"
    took_ms = [
        float(
            subprocess.run(
                [sys.executable, "-c", IMPORT_TORCH.format(needed)],
                cwd=ROOT,
                capture_output=True,
                check=True,
            ).stdout
        )
        for _ in range(IMPORT_ROUNDS)
    ]
    outcome.figures["import_added_ms"] = median(took_ms)
    outcome.details["import_added_ms"] = spread(took_ms)


def _measure_warm(folder: Path, outcome: Outcome) -> None:
    launcher = WarmLauncher(socket_path=folder / "warm")
    warm_s = []
    try:
        launcher.connect().close()  # the process behind it, which a user's first start pays for
        for number in range(WARM_ROUNDS + 1):
            output, began = folder / f"warm{number}", time.time()
            with output.open("wb") as file:
                ranks = launcher.start(
                    SCRIPT,
                    ["ours"],
                    ranks=2,
                    env=_environment(folder, f"warm{number}"),
                    cwd=folder,
                    output=file,
                )
                codes = ranks.wait(60)
            if codes != [0, 0]:
                raise RuntimeError(f"the ranks ended with {codes}:\n{output.read_text()[-2000:]}")
            if number:
                warm_s.append(_stepped_at(output.read_bytes()) - began)
    finally:
        launcher.stop()
    outcome.figures["warm_start_s"] = median(warm_s)
    outcome.details["warm_start_s"] = spread(warm_s, 3)


def _measure_torchrun(folder: Path, outcome: Outcome) -> None:
    """Both in turns; the first pair reads torch from the disk."""
    ours_s, raw_s = [], []
    for number in range(COLD_ROUNDS + 1):
        ours = _time_torchrun(folder, f"ours{number}", ["ours"])
        raw = _time_torchrun(folder, f"raw{number}", [])
        if number:
            ours_s.append(ours)
            raw_s.append(raw)
    outcome.figures["torchrun_start_s"] = median(ours_s)
    outcome.figures["raw_torchrun_start_s"] = median(raw_s)
    outcome.figures["torchrun_added_s"] = median([a - b for a, b in zip(ours_s, raw_s, strict=True)])
    outcome.details["torchrun_start_s"] = spread(ours_s, 3)
    outcome.details["raw_torchrun_start_s"] = spread(raw_s, 3)


def _time_torchrun(folder: Path, name: str, arguments: list[str]) -> float:
    began = time.time()
    done = subprocess.run(
        torchrun_command(SCRIPT, arguments, ranks=2),
        cwd=folder,
        env=_environment(folder, name),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}:\n{done.stdout.decode()[-2000:]}")
    return _stepped_at(done.stdout) - began


def _environment(folder: Path, name: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "BERTH_CHECKPOINT_DIR": str(folder / f"checkpoints-{name}"),
    }


def _stepped_at(output: bytes) -> float:
    found = STEPPED.search(output)
    if found is None:
        raise RuntimeError(f"no step was made:\n{output.decode(errors='replace')[-2000:]}")
    return float(found[1])
