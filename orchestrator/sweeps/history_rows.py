"""The history of a sweep from its rows, in the form that the search takes."""

import math
from collections.abc import Iterable

from orchestrator.models import RungReport, Sweep, SweepTrial
from orchestrator.sweeps.core.history import History, Report, Search, Trial, TrialState
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.rungs import rungs_for

EQUAL_TRIALS = 4  # that report the same value


def search_of(sweep: Sweep) -> Search:
    return Search(read_space(sweep.space), sweep.seed, sweep.sampler, rungs_of(sweep))


def rungs_of(sweep: Sweep) -> tuple[int, ...]:
    """The rungs of a sweep; empty until the length of a training is known, one without early stopping."""
    if sweep.longest is None:
        return ()
    if not sweep.early_stopping:
        return (sweep.longest,)
    return rungs_for(sweep.longest, sweep.first_rung)


def history_of(sweep: Sweep) -> History:
    """All trials and reports, values turned so that lower is better; a lost trial stays only as a number."""
    trials = {
        row.number: Trial(row.number, row.settings, TrialState(row.state), row.target)
        for row in SweepTrial.objects.filter(sweep=sweep)
    }
    rows = RungReport.objects.filter(trial__sweep=sweep).order_by("pk").select_related("trial")
    sign = sign_of(sweep)
    reports = (Report(row.trial.number, row.rung, cost_of(row.value, sign)) for row in rows)
    return History(trials, tuple(reports))


def sign_of(sweep: Sweep) -> float:
    return -1.0 if sweep.direction == "maximize" else 1.0


def cost_of(value: float | None, sign: float) -> float:
    """A value with the better one lower; infinite without a value."""
    return math.inf if value is None or not math.isfinite(value) else sign * value


def ignores_settings(reports: Iterable[RungReport]) -> bool:
    """Whether several trials reported one and the same value at their first rung: the script reads no setting."""
    first: dict[int, RungReport] = {}
    for report in reports:
        if report.trial_id not in first or report.rung < first[report.trial_id].rung:
            first[report.trial_id] = report
    values = {(report.rung, report.value) for report in first.values()}
    return len(first) >= EQUAL_TRIALS and len(values) == 1 and next(iter(values))[1] is not None


def best_of(sweep: Sweep, reports: Iterable[RungReport]) -> RungReport | None:
    """The report with the best value; the earliest of equal ones."""
    sign = sign_of(sweep)
    known = [report for report in reports if cost_of(report.value, sign) < math.inf]
    return min(known, key=lambda report: (cost_of(report.value, sign), report.pk), default=None)
