"""``python -m benchmarks.gpu``: on one NVIDIA GPU, all tests marked ``gpu`` and the benchmarks that need one.

Each part is a process with a limit of its own, so that one that hangs or fails costs only itself: all that it started
is killed with it.  Parts run one after the other, because Berth gives a GPU with another's process to nobody.  Figures
are kept in ``benchmarks/results/gpu-PART.json`` with device, driver, versions and commit.  ``--dry-run`` does the same
on the CPU, with results in a temporary folder: so that no minute of a GPU is lost to a mistake.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bounded import END_WITHIN_S, TIMED_OUT
from benchmarks.figures import RESULTS, ROOT, read_host, read_load, read_versions, rounded

DRY_RUN_VARIABLE = "BERTH_GPU_DRY_RUN"
MOST_S = 900  # all parts together; most take far less than their own limit
ENDS_LATER_S = 10  # than the limit and the time to end all: then the runner itself is at fault
_MARKED = re.compile(r"^(pytestmark = .*|\s*@)pytest\.mark\.gpu\b", re.MULTILINE)
DRY_RUN_TIMES = 20  # longer on the CPU of a busy machine, where only correctness counts


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    most_s: int
    command: tuple[str, ...]


def _measuring(name: str, most_s: int) -> Part:
    return Part(name, most_s, ("-m", "benchmarks.gpu_parts", name))


def _testing(name: str, most_s: int, files: Sequence[str]) -> Part:
    return Part(
        name, most_s, ("-m", "pytest", "-m", "gpu", "-q", "-n", "0", "-p", "no:cacheprovider", *files)
    )


def files_of_gpu_tests(root: Path = ROOT) -> list[str]:
    """Return the files that hold tests marked ``gpu``; to collect all the others takes a minute."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [str(file.relative_to(root)) for file in files if _MARKED.search(file.read_text())]


SERVER, RECIPES = "tests/system/test_real_gpu.py", "tests/training/test_gpu_recipes.py"
PARTS = (
    _testing("tests", 150, sorted({*files_of_gpu_tests()} - {SERVER, RECIPES})),
    _testing("server", 300, [SERVER]),
    _testing("recipes", 120, [RECIPES]),
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
    ended, output = run_bounded(command, max(most_s, 1), variables)
    told = json.loads(answer.read_text()) if answer.exists() else {}
    answer.unlink(missing_ok=True)
    if "pytest" in part.command:
        told["figures"] = counts = counts_of_tests(output)
        if ended == "passed" and not counts.get("passed"):
            ended = "failed"  # every test was skipped: nothing was seen
    return {
        "part": part.name,
        "ended": ended,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "took_s": round(time.monotonic() - began_s, 1),
        "figures": {name: rounded(value) for name, value in told.get("figures", {}).items()},
        "details": told.get("details", {}),
        "output": output[-4000:],
    }


def counts_of_tests(printed: str) -> dict[str, int]:
    """Return how many tests passed, failed or were skipped, from what pytest printed."""
    summaries = [line for line in printed.splitlines() if re.search(r"\d+ \w+.* in \d[\d.]*s", line)]
    return (
        {
            name: int(count)
            for count, name in re.findall(r"(\d+) (passed|failed|skipped|error)", summaries[-1])
        }
        if summaries
        else {}
    )


def run_bounded(command: Sequence[str], most_s: float, variables: Mapping[str, str]) -> tuple[str, str]:
    """Run a command with all that it starts for ``most_s`` at most; return how it ended, and what it printed."""
    with tempfile.TemporaryFile() as output:
        # A file, because a pipe stays open until the last process that has it is gone.
        bounded = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bounded", str(most_s), *command],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = bounded.wait(most_s + END_WITHIN_S + ENDS_LATER_S)
        except subprocess.TimeoutExpired:
            bounded.kill()
            code = TIMED_OUT
        except BaseException:  # Ctrl-C
            bounded.terminate()
            bounded.wait(END_WITHIN_S + ENDS_LATER_S)
            raise
        output.seek(0)
        printed = output.read().decode(errors="replace")
    return {0: "passed", TIMED_OUT: "timed out"}.get(code, "failed"), printed


if __name__ == "__main__":
    sys.exit(main())
