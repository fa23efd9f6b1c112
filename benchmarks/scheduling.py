"""How long jobs wait under Berth's scheduler, on traces of real clusters.

As a benchmark it replays the developers' traces; run by itself it replays any trace of that format:
``python -m benchmarks.scheduling --trace T.csv --pool P.json --schedule-out S.csv``.
"""

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.resampling import resample
from benchmarks.simulator.schedule import oracle_jct_s, score, write_schedule
from benchmarks.traces import read_pool, read_trace
from orchestrator.scheduler.core import Policy
from orchestrator.scheduler.simulator import replay as simulation
from orchestrator.scheduler.simulator.replay import Knowledge, Segment
from orchestrator.scheduler.simulator.trace import TraceJob

TRACES_AT = ROOT / "benchmarks" / "data" / "traces"
TRACES = {"philly8": "pool_8", "openb8": "pool_8", "philly64": "pool_64", "philly512": "pool_512"}
SETTINGS = {
    "all": Knowledge(predict=True),
    "half": Knowledge(progress="half"),
    "none_equal": Knowledge(progress="none", limits="equal"),
}
RESAMPLES = 5  # of each trace
RESAMPLED_JOBS = 600
ORACLES = ("srtf", "srsf")
BASELINES = ("fifo-bf", "easy-limit-bf", "mlfq-bf", "srsf-limit-bf", "trial-progress-bf", "srsf-bf")
FIGURES = (
    Figure("geo_jct_x_lb_all", "", "mean JCT over the lower bound, all jobs report progress", target=1.32),
    Figure("geo_jct_x_lb_half", "", "the same, a random half reports nothing", target=1.43),
    Figure("geo_jct_x_lb_none_equal", "", "the same, none reports and all limits are equal", target=2.10),
    Figure("philly64_jct_s", "s", "mean JCT on philly64", target=1_000_000),
    Figure("p99_slowdown_max", "", "p99 bounded slowdown, worst trace, all jobs report", target=20),
    Figure("jain_min", "", "Jain index over users, worst trace, all jobs report", target=0.93, at_least=True),
    Figure("makespan_x_lb_philly64", "", "makespan over the lower bound", target=1.20),
    Figure("restarts_per_job", "", "restarts a job, worst trace, all jobs report", target=2.5),
    Figure("restart_gpu_time_percent", "%", "GPU-time lost to restarts, mean of the traces", target=1.0),
    Figure("eta_ranges_held", "%", "predicted start ranges that held", target=90, at_least=True),
    Figure(
        "resampled_vs_best_oracle_max",
        "",
        "mean JCT over that of the better oracle, SRTF or SRSF, worst of 20 resampled traces",
        target=1.15,
    ),
    Figure(
        "elastic_jct_ratio",
        "",
        "mean JCT of philly8 where numbers of devices are chosen and changed, over that with the trace's",
        target=0.80,
    ),
    Figure("elastic_jct_ratio_openb8", "", "the same on openb8, where 41 % share a device and keep it"),
    *(
        Figure(
            f"geo_jct_x_lb_baseline_{name.removesuffix('-bf').replace('-', '_')}", "", "a baseline, all known"
        )
        for name in BASELINES
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One replayed trace with the checker's score of its schedule."""

    jct_s: float
    jct_x_lb: float
    p99_slowdown: float
    jain: float
    makespan_x_lb: float
    restarts_per_job: float
    restart_gpu_time_percent: float
    eta_ranges_held_percent: float | None
    eta_ranges_told: int
    passes: int
    took_s: float


def run(trace: Path, pool: Path, knowledge: Knowledge, schedule: Path, policy: Policy | None = None) -> Run:
    """Replay a trace, write its schedule and have it checked."""
    policy = replace(policy or Policy.progress_aware(), span_nodes=True)
    jobs = read_trace(trace)
    began = time.perf_counter()
    outcome = simulation.replay(jobs, read_pool(pool), policy, knowledge)
    took_s = time.perf_counter() - began
    write_schedule(schedule, outcome.segments, jobs)
    found = score(trace, pool, schedule, knowledge.restart_s)
    milli = {job.id: job.gpu_milli for job in jobs}
    used_gpu_s = sum(
        (each.end_s - each.start_s) * len(each.device_ids) * milli[each.job_id] / 1000
        for each in outcome.segments
    )
    held = [estimate.held for estimate in outcome.estimates]
    return Run(
        jct_s=found["mean_jct"],
        jct_x_lb=found["mean_jct"] / found["bounds"]["mean_jct"],
        p99_slowdown=found["p99_bsld"],
        jain=found["jain_users"],
        makespan_x_lb=found["makespan"] / found["bounds"]["makespan"],
        restarts_per_job=found["restarts"] / found["jobs"],
        restart_gpu_time_percent=100 * outcome.lost_gpu_s / used_gpu_s,
        eta_ranges_held_percent=100 * statistics.fmean(held) if held else None,
        eta_ranges_told=len(held),
        passes=outcome.passes,
        took_s=took_s,
    )


def measure() -> Outcome:
    outcome = Outcome()
    runs: dict[str, dict[str, Run]] = {setting: {} for setting in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        for setting, knowledge in SETTINGS.items():
            for name, pool in TRACES.items():
                runs[setting][name] = run(
                    TRACES_AT / f"dev_{name}.csv",
                    TRACES_AT / f"{pool}.json",
                    knowledge,
                    Path(folder) / f"{setting}-{name}.csv",
                )
                print(f"{setting} {name}: {runs[setting][name].jct_x_lb:.3f}", file=sys.stderr, flush=True)
        resampled = {
            f"{name} {seed}": vs_best_oracle(name, seed, Path(folder))
            for name in TRACES
            for seed in range(RESAMPLES)
        }
    outcome.figures = {**_figures(runs), **_baselines()}
    outcome.figures["resampled_vs_best_oracle_max"] = max(resampled.values())
    outcome.figures["elastic_jct_ratio"] = elastic_jct_ratio("philly8")
    outcome.figures["elastic_jct_ratio_openb8"] = elastic_jct_ratio("openb8")
    outcome.details = {
        setting: {name: _as_row(one) for name, one in by_trace.items()} for setting, by_trace in runs.items()
    }
    outcome.details["resampled_vs_best_oracle"] = resampled
    outcome.details["baselines"] = "benchmarks/data/traces/BASELINES.md, made with the checker's own tools"
    return outcome


def vs_best_oracle(name: str, seed: int, folder: Path, policy: Policy | None = None) -> float:
    """Mean JCT on a resampled trace over that of the better oracle, which knows every run time."""
    trace, pool = folder / f"{name}-{seed}.csv", TRACES_AT / f"{TRACES[name]}.json"
    resample(TRACES_AT / f"dev_{name}.csv", trace, seed, RESAMPLED_JOBS)
    ours = run(trace, pool, Knowledge(), folder / "schedule.csv", policy)
    ratio = ours.jct_s / min(oracle_jct_s(trace, pool, rule) for rule in ORACLES)
    print(f"resampled {name} {seed}: {ratio:.3f}", file=sys.stderr, flush=True)
    return ratio


def elastic_jct_ratio(name: str) -> float:
    """Mean JCT with numbers of devices that the scheduler chooses and changes, over that with the trace's.

    Each job that uses whole devices gets a serial share of its own, which the scheduler knows with an error; each
    change costs a restart.
    """
    jobs, pool = read_trace(TRACES_AT / f"dev_{name}.csv"), read_pool(TRACES_AT / f"{TRACES[name]}.json")
    policy = replace(Policy.progress_aware(), span_nodes=True)
    fixed, elastic = (
        mean_jct_s(jobs, simulation.replay(jobs, pool, policy, Knowledge(elastic=elastic)).segments)
        for elastic in (False, True)
    )
    return elastic / fixed


def mean_jct_s(jobs: Sequence[TraceJob], segments: Sequence[Segment]) -> float:
    ended = {segment.job_id: segment.end_s for segment in sorted(segments, key=lambda one: one.end_s)}
    return statistics.fmean(ended[job.id] - job.arrival_s for job in jobs)


def _figures(runs: Mapping[str, Mapping[str, Run]]) -> dict[str, float]:
    told = list(runs["all"].values())
    ranges = sum(one.eta_ranges_told for one in told)
    held = sum((one.eta_ranges_held_percent or 0.0) * one.eta_ranges_told for one in told)
    return {
        **{
            f"geo_jct_x_lb_{setting}": statistics.geometric_mean([one.jct_x_lb for one in by_trace.values()])
            for setting, by_trace in runs.items()
        },
        "philly64_jct_s": runs["all"]["philly64"].jct_s,
        "p99_slowdown_max": max(one.p99_slowdown for one in told),
        "jain_min": min(one.jain for one in told),
        "makespan_x_lb_philly64": runs["all"]["philly64"].makespan_x_lb,
        "restarts_per_job": max(one.restarts_per_job for one in told),
        "restart_gpu_time_percent": statistics.fmean(one.restart_gpu_time_percent for one in told),
        "eta_ranges_held": held / ranges if ranges else 0.0,
    }


def _baselines() -> dict[str, float]:
    """From ``BASELINES.md``: the xLB column of each policy over the four traces."""
    found: dict[str, list[float]] = {name: [] for name in BASELINES}
    for line in (TRACES_AT / "BASELINES.md").read_text().splitlines():
        name, *columns = line.split() or [""]
        if name in found and len(columns) > 2:
            found[name].append(float(columns[1]))
    return {
        f"geo_jct_x_lb_baseline_{name.removesuffix('-bf').replace('-', '_')}": statistics.geometric_mean(
            values
        )
        for name, values in found.items()
    }


def _as_row(one: Run) -> dict[str, Any]:
    row = {name: getattr(one, name) for name in Run.__slots__}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, help="job trace, CSV")
    parser.add_argument("--pool", type=Path, required=True, help="nodes and devices, JSON")
    parser.add_argument("--progress", choices=("all", "half", "none"), default="all")
    parser.add_argument("--limits", choices=("given", "equal", "shuffled"), default="given")
    parser.add_argument("--schedule-out", type=Path, help="where the schedule goes, CSV")
    parser.add_argument(
        "--eta-sigma", type=float, default=0.0, help="error of reports, sigma of the logarithm"
    )
    parser.add_argument("--restart-s", type=float, default=60.0, help="what a restart costs")
    parser.add_argument("--priorities", action="store_true", help="obey the priorities of the trace")
    parser.add_argument("--predict", action="store_true", help="check predicted start ranges too (slower)")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    knowledge = Knowledge(
        progress=asked.progress,
        limits=asked.limits,
        eta_sigma=asked.eta_sigma,
        restart_s=asked.restart_s,
        priorities=asked.priorities,
        predict=asked.predict,
        seed=asked.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        schedule = asked.schedule_out or Path(folder) / "schedule.csv"
        try:
            found = run(asked.trace, asked.pool, knowledge, schedule)
        except OSError as error:
            print(f"The replay failed: {error.filename}: {error.strerror}.", file=sys.stderr)
            return 1
        except (ValueError, csv.Error) as error:
            print(f"The replay failed: {error}", file=sys.stderr)
            return 1
    print(json.dumps(_as_row(found), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
