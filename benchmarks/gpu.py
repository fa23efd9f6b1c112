"""``python -m benchmarks.gpu``: on one NVIDIA GPU, all tests marked ``gpu`` and the benchmarks that need one, within ten minutes.

Each part is a process with a limit of its own, so that one that hangs or fails costs only itself.  Its figures
are kept in ``benchmarks/results/gpu-PART.json`` with device, driver, versions and commit.  ``--dry-run`` does the same
on the CPU, with results in a temporary folder: so that no minute of a GPU is lost to a mistake.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import RESULTS, ROOT, read_host, read_load, read_versions, rounded

DRY_RUN_VARIABLE = "BERTH_GPU_DRY_RUN"
MOST_S = 600
DRY_RUN_TIMES = 20  # longer on the CPU of a busy machine, where only correctness counts


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    most_s: int
    command: tuple[str, ...]


def _measuring(name: str, most_s: int) -> Part:
    return Part(name, most_s, ("-m", "benchmarks.gpu_parts", name))


PARTS = (
    Part("tests", 150, ("-m", "pytest", "-m", "gpu", "-q", "-n", "0", "-p", "no:cacheprovider", "tests")),
    _measuring("memory", 60),
    _measuring("regret", 90),
    _measuring("trials", 40),
    _measuring("evaluation", 120),
    _measuring("compile", 60),
    _measuring("checkpoint", 30),
    _measuring("packing", 50),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, keeping no results")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(each.name for each in PARTS)}"
    )
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.parts} - {each.name for each in PARTS}):
        parser.error(
            f"there is no part {', '.join(unknown)}; there are {', '.join(each.name for each in PARTS)}."
        )
    device = read_device()
    if device is None and not options.dry_run:
        print("There is no NVIDIA GPU here (nvidia-smi finds none). Try it on the CPU: make gpu DRY_RUN=1")
        return 2
    wanted = [each for each in PARTS if not options.parts or each.name in options.parts]
    if not options.dry_run:
        return run_parts(wanted, device, RESULTS, {})
    with tempfile.TemporaryDirectory(prefix="berth-gpu-") as folder:
        return run_parts(wanted, device, Path(folder), {DRY_RUN_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": ""})


def read_device() -> dict[str, str] | None:
    """Return name, driver and memory of the first GPU, as ``nvidia-smi`` says; None if there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", "-i", "0"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    name, driver, memory = (each.strip() for each in done.stdout.splitlines()[0].split(","))
    return {"name": name, "driver": driver, "memory": memory}


def run_parts(
    parts: Sequence[Part], device: Mapping[str, str] | None, folder: Path, variables: Mapping[str, str]
) -> int:
    """Run the parts one after the other while there is time; return 1 if one failed."""
    began_s, failed = time.monotonic(), []
    for part in parts:
        times = DRY_RUN_TIMES if variables else 1
        left_s = times * MOST_S - (time.monotonic() - began_s)
        record = run_part(part, min(times * part.most_s, left_s), folder, variables)
        record |= {"device": device, "versions": read_versions(), "host": read_host(), "load": read_load()}
        (folder / f"gpu-{part.name}.json").write_text(json.dumps(record, indent=2) + "\n")
        figures = ", ".join(
            f"{name} {value:g}" for name, value in record["figures"].items() if value is not None
        )
        print(f"{part.name:<11} {record['ended']:<10} {record['took_s']:>5.0f} s  {figures}", flush=True)
        if record["ended"] != "passed":
            failed.append(part.name)
            print(record["output"], flush=True)
    if failed:
        print(f"Failed: {', '.join(failed)}.")
    return int(bool(failed))


def run_part(part: Part, most_s: float, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Run one part within its limit; return its figures, or the end of what it printed."""
    answer = folder / f"part-{part.name}.json"
    began_s = time.monotonic()
    command = [sys.executable, *part.command]
    if part.command[1] == "benchmarks.gpu_parts":
        command.append(str(answer))
    ended, output = "passed", ""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=max(most_s, 1),
            check=False,
        )
        output = done.stdout
        if done.returncode:
            ended = "failed"
    except subprocess.TimeoutExpired as error:
        ended, output = "timed out", (error.stdout or b"").decode(errors="replace")
    told = json.loads(answer.read_text()) if answer.exists() else {}
    answer.unlink(missing_ok=True)
    return {
        "part": part.name,
        "ended": ended,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "took_s": round(time.monotonic() - began_s, 1),
        "figures": {name: rounded(value) for name, value in told.get("figures", {}).items()},
        "details": told.get("details", {}),
        "output": output[-4000:],
    }


if __name__ == "__main__":
    sys.exit(main())
