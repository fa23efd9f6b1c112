"""What it costs to report, keep, read and show a training's numbers."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.frames import measure_frame_ages
from benchmarks.ingest import measure_downsample
from benchmarks.server import Server, file_system
from benchmarks.stats import median, percentile, spread

FIGURES = (
    Figure("report_us", "us", "report() of a loss tensor on the step path, median", target=20),
    Figure(
        "ingest_points_s",
        "/s",
        "points from a metrics file into durable columns",
        target=100_000,
        at_least=True,
    ),
    Figure("bytes_per_point", "B", "all files of a job's metrics", target=16),
    Figure("downsample_ms", "ms", "1e6 points to 1,000 buckets, median", target=20),
    Figure("spikes_kept", "of 20", "planted spikes that the buckets show", target=20, at_least=True),
    Figure("frame_age_p95_ms", "ms", "reading to websocket frame, 100 clients", target=600),
)
DEVICES = "sim:8x80GiB"
STEPS = 5_000
LINES = 100_000
POINTS = 1_000_000
BUCKETS = 1_000
SPIKES = 20


def measure() -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        outcome.details["disk"] = file_system(Path(folder))
        measure_report(outcome, STEPS)
        measure_reading(outcome, Path(folder) / "metrics", POINTS)
    with Server(DEVICES) as server:
        measure_ingest(outcome, server, LINES)
        ages_s = measure_frame_ages(server.port, server.token)
    outcome.figures["frame_age_p95_ms"] = percentile(ages_s, 95) * 1000
    outcome.details["frame_age_ms"] = spread([age * 1000 for age in ages_s])
    return outcome


def measure_report(outcome: Outcome, steps: int) -> None:
    """In a process of its own, as a training is, between real steps."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "scripts" / "reporting.py"), str(steps)],
            env={**os.environ, "BERTH_METRICS_FILE": f"{folder}/metrics.jsonl", "RANK": "0"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        written = (Path(folder) / "metrics.jsonl").read_bytes().count(b"\n")
    if written < steps:
        raise RuntimeError(f"{written} lines were written for {steps} reported steps")
    took_us = [float(line) for line in done.stdout.split()]
    outcome.figures["report_us"] = median(took_us)
    outcome.details["report_us"] = {**spread(took_us), "mean": round(sum(took_us) / len(took_us), 1)}


def measure_reading(outcome: Outcome, folder: Path, points: int) -> None:
    """A column of noise with planted spikes, down to buckets."""
    found = measure_downsample(folder, points=points, max_points=BUCKETS, spikes=SPIKES)
    if not BUCKETS / 2 <= found.buckets <= BUCKETS:
        raise RuntimeError(f"{points:,} points came down to {found.buckets} buckets, not to {BUCKETS:,}")
    outcome.figures["downsample_ms"] = found.median_ms
    outcome.figures["spikes_kept"] = found.spikes_kept
    outcome.details["downsample_first_read_ms"] = round(found.first_ms, 2)


def measure_ingest(outcome: Outcome, server: Server, lines: int) -> None:
    """The agent's own Follower on the server's home, database and Redis, for a job that has ended."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.following", str(lines)],
        cwd=ROOT,
        env={**server.variables, "DJANGO_SETTINGS_MODULE": "orchestrator.server.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Following failed:\n{done.stderr[-2000:]}")
    points, took_s, stored_bytes = (float(word) for word in done.stdout.split())
    outcome.figures["ingest_points_s"] = points / took_s
    outcome.figures["bytes_per_point"] = round(stored_bytes / points, 2)
    outcome.details["ingest"] = {
        "points": int(points),
        "took_s": round(took_s, 3),
        "bytes": int(stored_bytes),
    }
