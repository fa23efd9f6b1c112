"""The history of a sweep from its rows, in the form that the search takes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from orchestrator.models import RungReport, Sweep, SweepTrial
from orchestrator.sweeps.core.gain import Spent, best_over_cost
from orchestrator.sweeps.core.history import History, Report, Search, Trial, TrialState
from orchestrator.sweeps.core.pareto import front
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.rungs import rungs_for
from orchestrator.sweeps.core.space import Space

EQUAL_TRIALS = 3  # that report the same value


class Metric(NamedTuple):
    """One metric of a sweep."""

    name: str
    direction: str

    @property
    def sign(self) -> float:
        return -1.0 if self.direction == "maximize" else 1.0


def metrics_of(sweep: Sweep) -> list[Metric]:
    """The metrics of a sweep, the one that its curves show first."""
    return [Metric(sweep.metric, sweep.direction), *(Metric(**one) for one in sweep.further)]


def search_of(sweep: Sweep) -> Search:
    space = read_space(sweep.space)
    metrics = len(metrics_of(sweep))
    return Search(space, sweep.seed, sweep.sampler, rungs_of(sweep), metrics, _earlier(sweep, space))


def _earlier(sweep: Sweep, space: Space) -> History:
    """The ended trials of the sweeps that this one learns from, numbered downwards from -1."""
    trials: dict[int, Trial] = {}
    reports: list[Report] = []
    for other in Sweep.objects.filter(pk__in=sweep.learns_from).order_by("pk"):
        past = history_of(other)
        inside = {
            number: -1 - len(trials) - place
            for place, number in enumerate(
                number for number, trial in past.trials.items() if space.contains(trial.settings)
            )
        }
        for number, below in inside.items():
            trial = past.trials[number]
            ended = TrialState.STOPPED if trial.state == TrialState.RUNNING else trial.state
            trials[below] = Trial(below, trial.settings, ended, trial.target)
        reports += [
            replace(report, trial=inside[report.trial]) for report in past.reports if report.trial in inside
        ]
    return History(trials, tuple(reports))


def rungs_of(sweep: Sweep) -> tuple[int, ...]:
    """The rungs of a sweep; empty until the length of a training is known, one without early stopping."""
    if sweep.longest is None:
        return ()
    if not sweep.early_stopping:
        return (sweep.longest,)
    return rungs_for(sweep.longest, sweep.first_rung)


def history_of(sweep: Sweep) -> History:
    """All trials and reports, values turned so that lower is better; a lost trial has no report."""
    known = SweepTrial.objects.filter(sweep=sweep).values_list(
        "number", "settings", "state", "target", "lost"
    )
    trials = {
        number: Trial(number, settings, TrialState(state), target, lost)
        for number, settings, state, target, lost in known
    }
    return History(trials, tuple(_reports_of(sweep)))


def _reports_of(sweep: Sweep) -> Iterator[Report]:
    """All reports in their order; further metrics are read only where there are some, since JSON is slow to read."""
    rows = RungReport.objects.filter(trial__sweep=sweep).order_by("pk")
    signs = [metric.sign for metric in metrics_of(sweep)]
    if len(signs) == 1:
        for number, rung, value in rows.values_list("trial__number", "rung", "value"):
            yield Report(number, rung, cost_of(value, signs[0]))
        return
    for number, rung, value, further in rows.values_list("trial__number", "rung", "value", "further"):
        yield Report(number, rung, *_costs(value, further, signs))


def _costs(
    value: float | None, further: Sequence[float | None], signs: Sequence[float]
) -> tuple[float, tuple[float, ...]]:
    """The values of a report with lower as better; a missing one is infinite."""
    padded = [*further, *[None] * (len(signs) - 1 - len(further))]
    others = tuple(cost_of(one, sign) for one, sign in zip(padded, signs[1:], strict=False))
    return cost_of(value, signs[0]), others


def front_of(sweep: Sweep, reports: Iterable[RungReport]) -> list[RungReport]:
    """The reports that no other one beats in every metric, the best in the first metric first."""
    signs = [metric.sign for metric in metrics_of(sweep)]
    rows = list(reports)
    costs = [(first, *others) for first, others in (_costs(row.value, row.further, signs) for row in rows)]
    return [rows[place] for place in sorted(front(costs), key=lambda place: costs[place])]


def gain_of(sweep: Sweep, device_s: Mapping[int, float]) -> list[Spent]:
    """The best value of the first metric over the device time of all trials.

    Args:
        device_s: by the number of the trial.
    """
    rows = RungReport.objects.filter(trial__sweep=sweep).order_by("pk")
    sign = sign_of(sweep)
    columns = rows.values_list("trial__number", "rung", "value")
    reports = [Report(number, rung, cost_of(value, sign)) for number, rung, value in columns]
    return best_over_cost(reports, device_s)


def sign_of(sweep: Sweep) -> float:
    return -1.0 if sweep.direction == "maximize" else 1.0


def cost_of(value: float | None, sign: float) -> float:
    """A value with the better one lower; infinite without a value."""
    return math.inf if value is None or not math.isfinite(value) else sign * value


def ignores_settings(first: Iterable[tuple[int, float | None]]) -> bool:
    """Whether several trials reported one and the same value at their first rung: the script reads no setting.

    Trials that failed before it say nothing about that.

    Args:
        first: the first rung and its value for each trial that has reported.
    """
    reports = [(rung, value) for rung, value in first if value is not None]
    return len(reports) >= EQUAL_TRIALS and len(set(reports)) == 1


def first_reports(reports: Iterable[RungReport]) -> list[tuple[int, float | None]]:
    """The first rung and its value for each trial."""
    first: dict[int, tuple[int, float | None]] = {}
    for report in reports:
        if report.trial_id not in first or report.rung < first[report.trial_id][0]:
            first[report.trial_id] = (report.rung, report.value)
    return list(first.values())


def best_of(sweep: Sweep, reports: Iterable[RungReport]) -> RungReport | None:
    """The report with the best value; the earliest of equal ones."""
    sign = sign_of(sweep)
    known = [report for report in reports if cost_of(report.value, sign) < math.inf]
    return min(known, key=lambda report: (cost_of(report.value, sign), report.pk), default=None)
