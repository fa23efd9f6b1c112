"""Runs the cells one after the other on ranks of the warm launcher, and collects their results."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.bench.cells import Cell, Measured, RankResult, Request, why_not
from training.launch import LaunchError, WarmLauncher

SCRIPT = Path(__file__).with_name("cell.py")
LONGEST_CELL_S = 120.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings shared by all cells."""

    steps: int = 12
    precision: str = "fp32"
    model: Path | None = None  # a file with build_model() and build_dataset(path); None: built-in
    data: str | None = None


def run_grid(
    cells: Sequence[Cell], setting: Setting, on_result: Callable[[int, Measured], None] | None = None
) -> list[Measured]:
    """Measure all cells; a cell that fails gets its reason, and the others still run.

    ``on_result(number, measured)`` is called after each cell.
    """
    measured = []
    devices, has_gpu = count_gpus()
    # Each CPU rank represents a device: it gets the same number of cores, alone or among others.
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
                if on_result is not None:
                    on_result(number, result)
        finally:
            launcher.stop()
    return measured


def run_cell(
    cell: Cell, setting: Setting, launcher: WarmLauncher, scratch: Path, env: Mapping[str, str]
) -> Measured:
    scratch.mkdir()
    request: Request = {
        "strategy": cell.strategy,
        "gpus": cell.gpus,
        "batch_size": cell.batch_size,
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
    rows: list[RankResult] = [json.loads(path.read_text()) for path in sorted(scratch.glob("result.*"))]
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
    """Return the number of GPUs, and whether there is one; asks torch in another process: CUDA breaks forks."""
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    done = subprocess.run(  # noqa: S603 -- our own line
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    count = int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdecimal() else 0
    return count, count > 0


def clean_environment(ranks: int) -> dict[str, str]:
    """Return this process's environment, without the variables of a rank or a job."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BERTH_", "TORCHELASTIC_", "TORCH_NCCL_"))
    }
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, variables.get("PYTHONPATH")]))
    return {**variables, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}


def _last_error(output: str) -> str:
    """Return the line that shows the error."""
    lines = [line.split("]: ", 1)[-1].strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or ["The rank ended without output."])[-1][:300]
