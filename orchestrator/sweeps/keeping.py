"""Whose files go first where a person's share of the disk is used up, and what is still there of a sweep."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from orchestrator.facts.events import Happened
from orchestrator.models import Checkpoint, Job, JobEvent, RungReport, Sweep, SweepTrial
from orchestrator.sweeps.history_rows import cost_of, front_of, sign_of

BEST_KEPT = 3  # trials of a sweep, whose files go last
_REMOVED = (Happened.FILES_REMOVED_AFTER_DAYS, Happened.FILES_REMOVED_OVER_SHARE)


class FilesOfTrials(NamedTuple):
    """What is there of a sweep's files, in numbers of trials."""

    with_checkpoints: int
    removed: int


def losers_first(ended: Sequence[Job]) -> list[Job]:
    """The trials of sweeps that did not win, then other jobs, then the best trials of each sweep; each in the order given."""
    trials = SweepTrial.objects.filter(job__in=[job.pk for job in ended])
    sweeps = Sweep.objects.filter(pk__in=trials.values("sweep"))
    best = {job for sweep in sweeps for job in _best_jobs(sweep)}
    lost = set(trials.values_list("job", flat=True)) - best
    # Sorting is stable: within each of the three kinds the order stays.
    return sorted(ended, key=lambda job: -1 if job.pk in lost else int(job.pk in best))


def files_of(sweep: Sweep) -> FilesOfTrials:
    """Count the trials that have a checkpoint on disk, and those whose files retention has removed."""
    kept = Checkpoint.objects.filter(job__trial__sweep=sweep)
    removed = JobEvent.objects.filter(job__trial__sweep=sweep, kind__in=_REMOVED)
    return FilesOfTrials(*(rows.values("job").distinct().count() for rows in (kept, removed)))


def _best_jobs(sweep: Sweep) -> set[UUID]:
    """The jobs of the best trials; with several metrics the jobs of the front, and of the best in the first metric."""
    reports = list(RungReport.objects.filter(trial__sweep=sweep).select_related("trial").order_by("rung"))
    by_trial: dict[UUID, list[RungReport]] = defaultdict(list)
    for report in reports:
        by_trial[report.trial.job_id].append(report)
    sign = sign_of(sweep)
    costs = {job: _lowest(own, sign) for job, own in by_trial.items()}
    best = set(sorted(costs, key=lambda job: costs[job])[:BEST_KEPT])
    if sweep.further:
        best |= {report.trial.job_id for report in front_of(sweep, (own[-1] for own in by_trial.values()))}
    return best


def _lowest(reports: Iterable[RungReport], sign: float) -> float:
    return min(cost_of(report.value, sign) for report in reports)
