"""Runs the cells one after the other on ranks of the warm launcher, and keeps what they measured."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from training.bench.cells import Cell, Measured, why_not
from training.launch import LaunchError, WarmLauncher

SCRIPT = Path(__file__).with_name("cell.py")
LONGEST_CELL_S = 120.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all cells."""

    steps: int = 12
    precision: str = "fp32"
    model: Path | None = None  # a file with build_model() and build_dataset(path); None: ours
    data: str | None = None


def run_grid(
    cells: Sequence[Cell], setting: Setting, told: Callable[[int, Measured], None] | None = None
) -> list[Measured]:
    """Measure all cells; one that fails has its reason, and the others go on.

    ``told(number, measured)`` is called after each.
    """
    measured = []
    devices, has_gpu = count_gpus()
    # Each CPU rank stands for a device: it has as many cores alone as beside the others.
    env = clean_environment(max((cell.gpus for cell in cells), default=1))
    with tempfile.TemporaryDirectory(prefix="berth-grid-", ignore_cleanup_errors=True) as name:
        launcher = WarmLauncher(socket_path=Path(name) / "warm")
        try:
            for number, cell in enumerate(cells):
                reason = why_not(cell, devices, has_gpu=has_gpu)
                if reason:
                    result = Measured(cell, not_measured=reason)
                else:
                    result = run_cell(cell, setting, launcher, Path(name) / str(number), env)
                measured.append(result)
                if told is not None:
                    told(number, result)
        finally:
            launcher.stop()
    return measured


def run_cell(
    cell: Cell, setting: Setting, launcher: WarmLauncher, scratch: Path, env: Mapping[str, str]
) -> Measured:
    scratch.mkdir()
    request = {
        **asdict(cell),
        "steps": setting.steps,
        "precision": setting.precision,
        "model": str(setting.model) if setting.model else None,
        "data": setting.data,
        "scratch": str(scratch / "checkpoints"),
        "result": str(scratch / "result"),
    }
    with (scratch / "output").open("wb") as output:
        try:
            ranks = launcher.start(SCRIPT, [json.dumps(request)], ranks=cell.gpus, env=env, output=output)
            codes = ranks.wait(LONGEST_CELL_S)
        except TimeoutError:
            ranks.kill()
            return Measured(cell, not_measured=f"It took longer than {LONGEST_CELL_S:g} s.")
        except LaunchError as error:
            return Measured(cell, not_measured=str(error))
    rows = [json.loads(path.read_text()) for path in sorted(scratch.glob("result.*"))]
    if any(codes) or not rows:
        return Measured(cell, not_measured=_last_error((scratch / "output").read_text(errors="replace")))
    first = rows[0]
    return Measured(
        cell,
        samples_per_step=first["samples_per_step"],
        step_s=first["step_s"],
        peak_bytes=max(row["peak_bytes"] for row in rows),
        communication=first["communication"],
    )


def count_gpus() -> tuple[int, bool]:
    """How many there are, and whether there is any; torch is asked in a process of its own: CUDA would spoil forks."""
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    done = subprocess.run(  # noqa: S603 -- our own line
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    count = int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdecimal() else 0
    return count, count > 0


def clean_environment(ranks: int) -> dict[str, str]:
    """This process's, without what makes it a rank or a job of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BERTH_", "TORCHELASTIC_", "TORCH_NCCL_"))
    }
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")]))
    return {**kept, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}


def _last_error(output: str) -> str:
    """The line that tells what went wrong."""
    lines = [line.split("]: ", 1)[-1].strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or ["It ended without a word."])[-1][:300]
