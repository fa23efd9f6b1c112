"""Measures the way of points from a run's lines to a chart; the benchmarks and the tests call the same functions."""

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.agent.telemetry.metric_lines import parse_lines
from orchestrator.store.metrics.series import read_series
from orchestrator.store.metrics.writer import Committed, MetricWriter, Point
from training.events import metric_line

BATCH_BYTES = 1 << 20  # what the agent reads at a time


@dataclass(frozen=True, slots=True)
class Ingest:
    """Points from JSON lines to durable columns."""

    points: int
    points_per_s: float
    bytes_per_point: float  # columns, journal and names together


def measure_ingest(folder: Path, *, points: int = 1_000_000, series: int = 4) -> Ingest:
    """Write lines of ``series`` values, then parse, append and flush them in batches as the agent does.

    ``folder`` must be empty; it holds ``metrics.jsonl`` and the columns in ``metrics/`` afterwards.
    """
    started_s = time.time()
    lines = folder / "metrics.jsonl"
    names = [f"m{number}" for number in range(series)]
    with lines.open("wb") as file:
        for step in range(points // series):
            file.write(metric_line(step, started_s + step * 0.001, dict.fromkeys(names, 1 / (step + 1))))
    start = time.perf_counter()
    committed = _ingest(lines, folder / "metrics", started_s)
    elapsed_s = time.perf_counter() - start
    size = sum(path.stat().st_size for path in (folder / "metrics").rglob("*") if path.is_file())
    return Ingest(committed["seq"], committed["seq"] / elapsed_s, size / committed["seq"])


def _ingest(lines: Path, columns: Path, started_s: float) -> Committed:
    offset, last_step = 0, None
    fd = os.open(lines, os.O_RDONLY)
    try:
        with MetricWriter(columns, 1, started_s, None) as writer:
            committed = writer.flush()
            while data := os.pread(fd, BATCH_BYTES, offset):
                batch = parse_lines(data, now=started_s + 3600, last_step=last_step)
                writer.append(batch.points)
                committed = writer.flush()
                offset, last_step = offset + batch.consumed_bytes, batch.last_step
    finally:
        os.close(fd)
    return committed


@dataclass(frozen=True, slots=True)
class Downsample:
    """One long series to buckets."""

    first_ms: float  # nothing of it mapped yet
    median_ms: float
    buckets: int
    spikes_kept: int


def measure_downsample(
    folder: Path, *, points: int = 1_000_000, max_points: int = 1_000, spikes: int = 20
) -> Downsample:
    """Store a noisy series with planted spikes in an empty folder and read it in buckets, eleven times."""
    rng = np.random.default_rng(7)
    values = rng.normal(size=points)
    planted = rng.choice(points, spikes, replace=False)
    values[planted] = 1e6 + np.arange(spikes)
    started_s = time.time()
    with MetricWriter(folder, 1, started_s, None) as writer:
        for first in range(0, points, 100_000):
            part = enumerate(values[first : first + 100_000].tolist(), first)
            writer.append([Point("loss", step, started_s + step * 0.001, value) for step, value in part])
            writer.flush()
    times_ms = []
    for _ in range(11):
        start = time.perf_counter()
        series = read_series(folder, ["loss"], max_points=max_points)["loss"]
        times_ms.append((time.perf_counter() - start) * 1000)
    kept = sum(
        bool(series.y_max[np.searchsorted(series.x, step, side="right") - 1] >= values[step])
        for step in planted
    )
    return Downsample(times_ms[0], statistics.median(times_ms), len(series.x), kept)
