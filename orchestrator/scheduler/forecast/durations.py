"""How long a job would run, judged by earlier runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import Q

from berth.shared.job_fields import STARTS
from orchestrator.models import Job, JobState

RECENT = 1_000  # the jobs of the server that succeeded last; older ones are not searched
MOST_READ = 200  # similar jobs
RUNS_REMEMBERED = 10  # per number of devices
FEW_RUNS = 3  # with fewer runs, their spread says nothing yet
MARGIN_OF_FEW = 0.20  # so the range is this much wider at either end
LEAST_MARGIN = 0.05


class Like(StrEnum):
    """What earlier runs have in common with a job, the most telling first."""

    CODE_AND_ARGUMENTS = "code and arguments"
    SCRIPT_AND_ARGUMENTS = "script and arguments"  # the owner's runs of a script of this name
    CODE = "code"  # any owner's runs of the code
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class ExpectedDuration:
    """The range of seconds that a job would run, over all of its attempts."""

    low_s: float
    high_s: float
    runs: int  # the number of earlier runs behind the range
    like: Like


@dataclass(frozen=True, slots=True)
class _Run:
    gpus: int
    seconds: float
    like: Like


def expected_durations(job: Job, counts: Collection[int]) -> dict[int, ExpectedDuration]:
    """How long an unsaved job would run, by number of devices; numbers without an earlier run are missing.

    Only successful runs count.  If both name their steps, a run's time is scaled to the job's number of steps.
    """
    runs = [
        _Run(row["gpus"], row["seconds_run"] * _scale(job, row), _like(job, row))
        for row in _earlier(job, counts)
    ]
    return {
        count: _range(job, of_count)
        for count in counts
        if (of_count := _closest([run for run in runs if run.gpus == count]))
    }


def _earlier(job: Job, counts: Collection[int]) -> Sequence[Mapping[str, Any]]:
    """Earlier similar runs, newest first."""
    recent = Job.objects.filter(state=JobState.SUCCEEDED).order_by("-pk").values("pk")[:RECENT]
    own = Q(owner=job.owner, **{f"spec_fields__{name}": value for name, value in _start_of(job).items()})
    rows = Job.objects.filter(own | Q(bundle=job.bundle) if job.bundle else own)
    return list(
        rows.filter(pk__in=recent, gpus__in=counts, seconds_run__gt=0)
        .order_by("-pk")
        .values("gpus", "bundle", "seconds_run", "total_steps", "spec_fields__args")[:MOST_READ]
    )


def _start_of(job: Job) -> dict[str, str | list[str]]:
    """What the job runs; its entrypoint is null where it has a module or a command."""
    return {name: job.spec_fields[name] for name in STARTS if job.spec_fields.get(name)}


def _scale(job: Job, row: Mapping[str, Any]) -> float:
    return job.total_steps / row["total_steps"] if job.total_steps and row["total_steps"] else 1.0


def _like(job: Job, row: Mapping[str, Any]) -> Like:
    is_code = bool(job.bundle) and row["bundle"] == job.bundle
    if row["spec_fields__args"] == job.spec_fields["args"]:
        return Like.CODE_AND_ARGUMENTS if is_code else Like.SCRIPT_AND_ARGUMENTS
    return Like.CODE if is_code else Like.SCRIPT


def _closest(runs: Sequence[_Run]) -> list[_Run]:
    """The newest of the runs that are most like the job."""
    for like in Like:
        if similar := [run for run in runs if run.like == like]:
            return similar[:RUNS_REMEMBERED]
    return []


def _range(job: Job, runs: Sequence[_Run]) -> ExpectedDuration:
    margin = LEAST_MARGIN if len(runs) >= FEW_RUNS else MARGIN_OF_FEW
    limit_s = job.time_limit_s or float("inf")
    low_s = min(run.seconds for run in runs) * (1 - margin)
    high_s = max(run.seconds for run in runs) * (1 + margin)
    return ExpectedDuration(min(low_s, limit_s), min(high_s, limit_s), len(runs), runs[0].like)
