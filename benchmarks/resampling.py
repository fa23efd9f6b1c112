"""Resampled traces: the jobs of a trace drawn again, so that nothing is tuned to four files."""

import csv
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

_BLOCK = 25  # arrivals that stay together, so that bursts stay bursts
_LENGTH_SIGMA = 0.3  # of the logarithm of the factor that changes a job's run time
_LOADS = (0.85, 1.15)  # the offered load changes by a factor in this range

Row = Mapping[str, str]


def resample(source: Path, target: Path, seed: int, most_jobs: int) -> None:
    """Write a trace of jobs drawn with replacement from ``source``; equal seeds write equal files.

    Who arrives is drawn job by job; the time between arrivals is drawn in blocks of neighbours.
    """
    dice = Random(f"{source.stem} {seed}")  # noqa: S311 -- a workload, not a secret
    with source.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows.sort(key=lambda row: float(row["arrival_s"]))
    count = min(most_jobs, len(rows))
    drawn = [_perturbed(dice.choice(rows), dice) for _ in range(count)]
    gaps_s = _gaps_s(rows, count, dice)
    # The same work for each second as in the source, changed by the drawn factor.
    factor = dice.uniform(*_LOADS) * (_work_s(rows) / _span_s(rows)) / (_work_s(drawn) / sum(gaps_s))
    now, lines = 0.0, []
    for number, (row, gap_s) in enumerate(zip(drawn, gaps_s, strict=True)):
        lines.append({**row, "job_id": str(number), "arrival_s": f"{now:.3f}"})
        now += gap_s / factor
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _perturbed(row: Row, dice: Random) -> Row:
    """The job with another run time; its time limit keeps its ratio to the run time."""
    factor = dice.lognormvariate(0.0, _LENGTH_SIGMA)
    changed = {
        name: f"{float(row[name]) * factor:.3f}" for name in ("duration_s", "limit_s") if row.get(name)
    }
    return {**row, **changed}


def _gaps_s(rows: Sequence[Row], count: int, dice: Random) -> list[float]:
    arrivals = [float(row["arrival_s"]) for row in rows]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    drawn: list[float] = []
    while len(drawn) < count:
        first = dice.randrange(len(gaps))
        drawn += gaps[first : first + _BLOCK]
    return drawn[:count]


def _span_s(rows: Sequence[Row]) -> float:
    return float(rows[-1]["arrival_s"]) - float(rows[0]["arrival_s"])


def _work_s(rows: Sequence[Row]) -> float:
    return sum(
        float(row["duration_s"]) * float(row["gpus"]) * float(row.get("gpu_milli") or 1000) for row in rows
    )
