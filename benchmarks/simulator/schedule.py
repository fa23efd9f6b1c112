"""Schedules on disk, and their score by the independent checker ``benchmarks/data/tools``."""

import csv
import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator.scheduler.simulator.replay import Segment
from orchestrator.scheduler.simulator.trace import TraceJob

TOOLS = Path(__file__).resolve().parents[1] / "data" / "tools"


@cache
def tool(name: str) -> ModuleType:
    """A script of ``benchmarks/data/tools`` as a module."""
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))  # they import each other by plain name
    return importlib.import_module(name)


def write_schedule(path: Path, segments: Iterable[Segment], jobs: Iterable[TraceJob]) -> None:
    milli = {job.id: job.gpu_milli for job in jobs}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job_id", "start_s", "end_s", "gpus", "milli"])
        for segment in segments:
            times = [f"{segment.start_s:.6f}", f"{segment.end_s:.6f}"]
            writer.writerow([segment.job_id, *times, " ".join(segment.device_ids), milli[segment.job_id]])


def score(trace: Path, pool: Path, schedule: Path, restart_s: float) -> Mapping[str, Any]:
    """What the checker says about a schedule, with the lower bounds of its trace as ``bounds``.

    Raises:
        ValueError: the schedule is not feasible or not complete.
    """
    checker, baselines = tool("evaluate_schedule"), tool("baseline_schedules")
    jobs = checker.load_trace(str(trace))
    devices = checker.Pool(json.loads(pool.read_text()))
    result = checker.evaluate(jobs, devices, checker.load_schedule(str(schedule)), restart_s)
    if not result["feasible"]:
        raise ValueError(f"The checker refuses {schedule}: {'; '.join(result['errors'][:3])}.")
    return {**result, "bounds": baselines.lower_bounds(jobs, devices.size)}


def oracle_jct_s(trace: Path, pool: Path, rule: str, restart_s: float = 60.0) -> float:
    """Mean JCT of a baseline that ranks by the true run times, best fit; ``rule``: "srtf" or "srsf"."""
    checker, baselines = tool("evaluate_schedule"), tool("baseline_schedules")
    jobs, devices = checker.load_trace(str(trace)), checker.Pool(json.loads(pool.read_text()))
    rows = baselines.simulate(jobs, devices, rule, "bf", restart_s)
    return float(checker.evaluate(jobs, devices, rows, restart_s)["mean_jct"])
