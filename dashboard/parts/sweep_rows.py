"""What the page of a sweep shows and draws: its trials in order, their curves, and the best value over cost."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Max, Sum
from django.utils.translation import gettext as _

from berth.shared import words
from orchestrator.models import RungReport, Sweep, SweepTrial
from orchestrator.store.metrics.series import read_series
from orchestrator.sweeps.core.history import TrialState
from orchestrator.sweeps.core.importance import importance
from orchestrator.sweeps.core.pareto import front
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.ending import device_s_by_trial, running_device_s
from orchestrator.sweeps.history_rows import cost_of, gain_of, metrics_of, rungs_of, sign_of

HOUR_S = 3600.0
CURVE_POINTS = 60
CURVES_KEPT = 4096
MOST_ROWS = 500
# What is read of each trial: the fields of its job alone would cost as much as the rest of the page.
COLUMNS = (
    *("number", "state", "settings", "error", "lost", "created_at", "ended_at", "sweep_id"),
    *("job__id", "job__state", "job__metric_seq", "job__attained_gpu_s"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One trial; ``value`` is its best one, reported at ``rung``."""

    trial: SweepTrial
    value: float | None
    rung: int | None
    reports: tuple[tuple[int, float | None], ...]
    cost: float  # lower is better, infinite without a value
    device_s: float  # that it has used until now
    further: tuple[float | None, ...] = ()  # of the sweep's other metrics, at its last rung

    @property
    def last(self) -> tuple[int, float]:
        """For a ranking that does not mistake little training for a bad trial: further ones come first."""
        return (-self.reports[-1][0], self.cost) if self.reports else (0, math.inf)

    def cell(self, name: str) -> str:
        """The text of a setting; empty where it does not exist for this trial."""
        return text_of(self.trial.settings[name]) if name in self.trial.settings else ""


def rows_of(sweep: Sweep) -> list[Row]:
    """The trials of a sweep by number."""
    trials = SweepTrial.objects.filter(sweep=sweep).select_related("job").only(*COLUMNS)
    found = RungReport.objects.filter(trial__sweep=sweep).order_by("rung")
    reports: dict[int, list[tuple[int, float | None]]] = defaultdict(list)
    further: dict[int, tuple[float | None, ...]] = {}
    for trial_id, rung, value, others in found.values_list("trial_id", "rung", "value", "further"):
        reports[trial_id].append((rung, value))
        further[trial_id] = tuple(others)
    sign = sign_of(sweep)
    running_s = running_device_s(sweep)
    return [
        _row(
            trial,
            reports[trial.pk],
            sign,
            trial.job.attained_gpu_s + running_s.get(trial.number, 0.0),
            further.get(trial.pk, ()),
        )
        for trial in trials.order_by("number")
    ]


def _row(
    trial: SweepTrial,
    reports: Sequence[tuple[int, float | None]],
    sign: float,
    device_s: float,
    further: tuple[float | None, ...],
) -> Row:
    best = min(reports, key=lambda report: cost_of(report[1], sign), default=None)
    if best is None or best[1] is None:
        return Row(trial, None, None, tuple(reports), math.inf, device_s, further)
    return Row(trial, best[1], best[0], tuple(reports), cost_of(best[1], sign), device_s, further)


def front_of(sweep: Sweep, rows: Sequence[Row]) -> list[Row]:
    """The trials that no other one beats in every metric, the best in the first metric first; with one metric none."""
    metrics = metrics_of(sweep)
    if len(metrics) == 1:
        return []
    costs = [
        [
            row.cost,
            *(cost_of(value, metric.sign) for value, metric in zip(row.further, metrics[1:], strict=False)),
        ]
        for row in rows
    ]
    whole = [place for place, cost in enumerate(costs) if len(cost) == len(metrics)]
    on_front = (whole[place] for place in front([costs[place] for place in whole]))
    return sorted((rows[place] for place in on_front), key=lambda row: row.cost)


def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return words.value(value) if isinstance(value, int | float) else str(value)


def ordered(rows: Sequence[Row], wanted: str) -> tuple[list[Row], str]:
    """The rows by number, value, state, cost or a setting, and the order that was taken; ``-`` turns it round."""
    name, backwards = wanted.removeprefix("-"), wanted.startswith("-")
    keys: dict[str, Callable[[Row], Any]] = {
        "number": lambda row: row.trial.number,
        "value": lambda row: row.cost,
        "state": lambda row: row.trial.state,
        "time": lambda row: row.device_s,
    }
    if name.startswith("set."):
        setting = name[4:]
        keys[name] = lambda row: _sortable(row.trial.settings.get(setting))
    if name.startswith("further.") and name[8:].isdecimal():
        place = int(name[8:10])
        keys[name] = lambda row: _sortable(row.further[place] if place < len(row.further) else None)
    if name not in keys:
        return ordered(rows, "value")
    return sorted(rows, key=keys[name], reverse=backwards), wanted


def _sortable(value: Any) -> tuple[int, float, str]:
    """Numbers before texts, and what does not exist last."""
    if value is None:
        return (2, 0.0, "")
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def shares(sweep: Sweep, rows: Sequence[Row]) -> list[tuple[str, float]]:
    """How much each setting matters, in percent, the greatest first; empty with too few trials."""
    reported = sorted((row for row in rows if row.reports), key=lambda row: row.last)
    found = importance(read_space(sweep.space), [row.trial.settings for row in reported])
    return [(name, round(100 * share, 1)) for name, share in found.items()]


def version_of(sweep: Sweep) -> str:
    """Changes whenever a trial reports or moves, or the sweep does."""
    news = SweepTrial.objects.filter(sweep=sweep).aggregate(
        count=Count("pk"), versions=Sum("job__version"), points=Sum("job__metric_seq"), ended=Max("ended_at")
    )
    told = SweepTrial.objects.filter(sweep=sweep).aggregate(reports=Count("reports"))["reports"]
    budget = (sweep.max_trials, sweep.max_device_s, sweep.max_width)
    return "-".join(map(str, (sweep.state, told, *news.values(), *budget))).replace(" ", "_")


class DrawnTrial(TypedDict):
    """A trial, or a job of an array, as static/js/sweep.js draws it."""

    number: int
    job: str
    state: str
    seq: int
    value: float | None
    rung: int | None
    settings: list[Any]  # in the order of the picture's
    reports: Sequence[tuple[int, float | None]]
    further: Sequence[float | None]


class DrawnMetric(TypedDict):
    """A metric of a sweep with several."""

    name: str
    minimize: bool


class SweepPicture(TypedDict):
    """What the script draws, without curves."""

    version: str
    live: bool
    metric: str
    minimize: bool
    rungs: list[int]
    settings: list[dict[str, Any]]  # each with its name, as ``Space`` keeps them
    trials: list[DrawnTrial]
    best: list[tuple[float, float]]
    further: list[DrawnMetric]
    front: list[int]


def picture(sweep: Sweep, rows: Sequence[Row]) -> SweepPicture:
    """What the script draws, without curves."""
    space = read_space(sweep.space)
    varying = [setting for setting in space.settings if setting.varies]
    return {
        "version": version_of(sweep),
        "live": not sweep.has_ended,
        "metric": sweep.metric,
        "minimize": sweep.direction == "minimize",
        "rungs": list(rungs_of(sweep)),
        "settings": [{"name": setting.name, **sweep.space[setting.name]} for setting in varying],
        "trials": [_drawn(row, [setting.name for setting in varying]) for row in rows],
        "best": best_over_cost(sweep),
        "further": [
            {"name": one.name, "minimize": one.direction == "minimize"} for one in metrics_of(sweep)[1:]
        ],
        "front": [row.trial.number for row in front_of(sweep, rows)],
    }


def _drawn(row: Row, names: Sequence[str]) -> DrawnTrial:
    trial = row.trial
    return {
        "number": trial.number,
        "job": str(trial.job_id),
        "state": trial.state,
        "seq": trial.job.metric_seq,
        "value": row.value,
        "rung": row.rung,
        "settings": [trial.settings.get(name) for name in names],
        "reports": row.reports,
        "further": row.further,
    }


def best_over_cost(sweep: Sweep) -> list[tuple[float, float]]:
    """The best value so far after each number of device-hours that all trials used; its changes and the last one."""
    points = gain_of(sweep, device_s_by_trial(sweep))
    sign = sign_of(sweep)
    changes = [
        point
        for place, point in enumerate(points)
        if place in {0, len(points) - 1} or point.best < points[place - 1].best
    ]
    return [(point.device_s / HOUR_S, sign * point.best) for point in changes]


def curves(
    sweep: Sweep, numbers: Collection[int] | None
) -> dict[int, tuple[list[float], list[float | None]]]:
    """The curves of these trials, or of all, in few points each."""
    trials = SweepTrial.objects.filter(sweep=sweep)
    if numbers is not None:
        trials = trials.filter(number__in=numbers)
    wanted = trials.values_list("number", "job_id", "job__metric_seq")
    return {number: curve_of(job, sweep.metric, seq) for number, job, seq in wanted if seq}


@lru_cache(maxsize=CURVES_KEPT)
def curve_of(job: UUID, metric: str, seq: int) -> tuple[list[float], list[float | None]]:
    """A curve up to ``seq``, which only names the entry of the cache: points are added and never changed."""
    found = read_series(settings.HOME.job(job).metrics, [metric], max_points=CURVE_POINTS).get(metric)
    if found is None:
        return [], []
    return [float(x) for x in found.x], [float(y) if math.isfinite(y) else None for y in found.y]


def counts_of(rows: Iterable[Row]) -> Mapping[str, int]:
    """The number of trials in each state that has any, in the order of the states."""
    states = [row.trial.state for row in rows]
    return {state: states.count(state) for state in TrialState if state in states}
