"""Reads what the job of a trial reports: its metric at the rungs, and how it ended."""

import math
import re
from dataclasses import dataclass

import numpy as np
from django.conf import settings
from django.db.models import F
from numpy.typing import NDArray

from orchestrator.models import Attempt, Checkpoint, ExitKind, Job, JobState, Sweep
from orchestrator.store.metrics.buckets import Series
from orchestrator.store.metrics.series import read_series, series_names
from orchestrator.sweeps.history_rows import metrics_of

MOST_POINTS = 20_000
LEAST_DONE = 0.5  # the share of its total from which on an early stop tells the length of a whole training
NEWEST = 50  # trials whose restarts are measured
# What a script does by itself; every other failure is a fault of the machine, which says nothing about the settings.
OWN_FAILURES = frozenset(
    {ExitKind.USER_ERROR, ExitKind.OOM_GPU, ExitKind.OOM_CPU, ExitKind.SIGNAL, ExitKind.HANG}
)
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Curve:
    """The metric of a trial by step, ascending."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def last_step(self) -> int | None:
        return int(self.steps[-1]) if len(self.steps) else None

    def value_at(self, rung: int, window: int) -> float | None:
        """The mean of the last ``window`` values when the rung was reached; None where it is not finite."""
        end = min(len(self.steps), int(np.searchsorted(self.steps, rung)) + 1)
        value = float(np.mean(self.values[max(0, end - window) : end])) if end else math.nan
        return value if math.isfinite(value) else None


def curves_of(sweep: Sweep, job: Job) -> list[Curve]:
    """The curve of each metric, empty while it has none; NaN and infinities stay in it."""
    names = [metric.name for metric in metrics_of(sweep)]
    series = read_series(settings.HOME.job(job.pk).metrics, names, max_points=MOST_POINTS)
    return [_curve_of(series.get(name)) for name in names]


def length_of(job: Job, last_step: int) -> int:
    """The steps of a whole training, from one that succeeded.

    It may have stopped early by itself; then its own progress says how much it left out. One that ends far from its
    total has a limit there rather than a length.

    Args:
        last_step: of the metric, which may count otherwise than the progress does.
    """
    done = job.step / job.total_steps if job.step and job.total_steps else 1.0
    return max(1, last_step, round(last_step / done) if done >= LEAST_DONE else 0)


def has_reported(sweep: Sweep, job: Job) -> bool:
    """Whether a job has a value of every metric."""
    return all(curve.last_step is not None for curve in curves_of(sweep, job))


def _curve_of(found: Series | None) -> Curve:
    if found is None:
        return Curve(np.empty(0, np.int64), np.empty(0, np.float64))
    order = np.argsort(found.x, kind="stable")
    return Curve(np.asarray(found.x, np.int64)[order], np.asarray(found.y, np.float64)[order])


def metric_names(job: Job) -> list[str]:
    return series_names(settings.HOME.job(job.pk).metrics)


def failed_by_itself(job: Job) -> bool:
    """Whether an ended job failed by what its script did, so that its failure is a result."""
    return job.state == JobState.FAILED and job.exit_kind in OWN_FAILURES


def error_of(job: Job) -> str:
    """How a job failed, in a line: the exception where its script raised one."""
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    failure = (attempt.first_failure if attempt else None) or {}
    if failure.get("exception"):
        return f"{failure['exception']}: {failure.get('message', '')}".strip().splitlines()[0][:500]
    return job.exit_detail[:500]


def same_error(one: str, other: str) -> bool:
    """Whether two errors differ in numbers and addresses alone."""
    return _CHANGING.sub("0", one) == _CHANGING.sub("0", other)


def can_be_paused(sweep: Sweep, job: Job) -> bool:
    """Whether a trial has a checkpoint to continue from, and no trial of the sweep ignored its own."""
    return sweep.can_resume is not False and Checkpoint.objects.filter(job=job).exists()


def began_again(job: Job) -> bool:
    """Whether a job whose checkpoint was handed to it began at its start all the same."""
    newest = Attempt.objects.filter(job=job, number__gt=1).order_by("-number").first()
    if newest is None or newest.first_step is None or newest.resumed_from_step is None:
        return False
    return newest.first_step < newest.resumed_from_step


def restart_cost_steps(sweep: Sweep) -> float:
    """The steps that a trial could have trained in the time of a restart, as measured on the newest trials."""
    measured = Job.objects.filter(trial__sweep=sweep, restart_cost_s__isnull=False, steps_per_s__isnull=False)
    steps = measured.order_by("-pk").annotate(steps=F("restart_cost_s") * F("steps_per_s"))
    costs = list(steps.values_list("steps", flat=True)[:NEWEST])
    return float(np.median(costs)) if costs else 0.0
