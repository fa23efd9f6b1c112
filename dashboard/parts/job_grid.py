"""Jobs that differ in their arguments, looked at as the trials of a sweep: an array, a tag, a loop in a shell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict
from uuid import UUID

from django.db.models import Count, Max, QuerySet, Sum
from django.utils import timezone

from berth.shared.metric_names import in_loss_order, lower_is_better
from dashboard.parts.sweep_rows import HOUR_S, DrawnTrial, curve_of, text_of
from orchestrator.models import FINAL_STATES, Attempt, Job
from orchestrator.people.usage import used_gpu_s
from orchestrator.sweeps.core.importance import importance
from orchestrator.sweeps.core.space import Setting, SettingJson, Space, Value

MOST_JOBS = 500  # the newest
MOST_SETTINGS = 24
LOG_FROM = 100.0  # ratio of the largest to the smallest value
INDEX = "array index"


class GridPicture(TypedDict):
    """What the script draws, in the shape of a sweep's picture."""

    version: str
    live: bool
    metric: str
    minimize: bool
    rungs: list[int]
    settings: list[SettingJson]
    trials: list[DrawnTrial]
    best: list[tuple[float, float]]
    further: list[str]
    front: list[int]


@dataclass(frozen=True, slots=True)
class GridRow:
    """A job with the arguments in which it differs from the others, and the last value of the metric."""

    number: int
    job: Job
    settings: Mapping[str, Value]
    value: float | None
    device_s: float  # until now; half of a device counts half

    def cell(self, name: str) -> str:
        return text_of(self.settings[name]) if name in self.settings else ""


class JobGrid:
    """The jobs of a queryset as points of a grid."""

    def __init__(self, jobs: QuerySet[Job], *, metric: str, maximize: bool | None) -> None:
        """``metric`` empty: the main loss; ``maximize`` None: by the metric's name."""
        newest = jobs.order_by("-pk")[:MOST_JOBS]
        found = Job.objects.filter(pk__in=list(newest.values_list("pk", flat=True))).order_by("pk")
        columns = ("id", "name", "state", "stop_reason", "arguments", "array_index", "array_id")
        self._found = found
        self.jobs = list(found.only(*columns, "last_values", "metric_seq", "step", "attained_gpu_s"))
        self.metrics = sorted({name for job in self.jobs for name in job.last_values})
        losses = in_loss_order(self.metrics)
        self.metric = metric if metric in self.metrics else (losses or self.metrics or [""])[0]
        self.minimize = not maximize if maximize is not None else lower_is_better(self.metric) is not False

    @cached_property
    def names(self) -> list[str]:
        """The arguments that differ between the jobs."""
        names = dict.fromkeys(name for job in self.jobs for name in _settings_of(job))
        each = {name: {_key(_settings_of(job).get(name)) for job in self.jobs} for name in names}
        return [name for name, values in each.items() if len(values) > 1][:MOST_SETTINGS]

    @cached_property
    def rows(self) -> list[GridRow]:
        """All jobs, the oldest first."""
        rows = []
        for number, job in enumerate(self.jobs, 1):
            own = _settings_of(job)
            settings = {name: own[name] for name in self.names if own.get(name) is not None}
            value = job.last_values.get(self.metric)
            known = isinstance(value, int | float) and math.isfinite(value)
            device_s = job.attained_gpu_s + self._running_s.get(job.pk, 0.0)
            rows.append(GridRow(number, job, settings, float(value) if known else None, device_s))
        return rows

    @cached_property
    def _running_s(self) -> Mapping[UUID, float]:
        """The device time of the attempts that run, by job."""
        now = timezone.now()
        live = (
            Attempt.objects.live().filter(job__in=self.jobs, started_at__isnull=False).select_related("job")
        )
        return {
            attempt.job_id: used_gpu_s(attempt, max(0.0, (now - attempt.started_at).total_seconds()))
            for attempt in live
            if attempt.started_at is not None
        }

    def cost(self, row: GridRow) -> float:
        """Lower is better; infinite without a value."""
        return math.inf if row.value is None else row.value if self.minimize else -row.value

    def shares(self) -> list[tuple[str, float]]:
        """How much each setting matters, in percent, the greatest first; empty with too few jobs."""
        space = {name: json for name, json in self._space().items() if name in self.names}
        valued = sorted((row for row in self.rows if row.value is not None), key=self.cost)
        if not space:
            return []
        settings = [
            {name: _place(value, space[name]) for name, value in row.settings.items()} for row in valued
        ]
        found = importance(Space(tuple(_searched(name, each) for name, each in space.items())), settings)
        return [(name, round(100 * share, 1)) for name, share in found.items()]

    def version(self) -> str:
        """Changes whenever one of the jobs reports or moves."""
        news = self._found.aggregate(
            count=Count("pk"), moved=Sum("version"), points=Sum("metric_seq"), last=Max("pk")
        )
        return "-".join(map(str, (*news.values(), self.metric, self.minimize)))

    def picture(self) -> GridPicture:
        space = self._space()
        return {
            "version": self.version(),
            "live": any(job.state not in FINAL_STATES for job in self.jobs),
            "metric": self.metric,
            "minimize": self.minimize,
            "rungs": [],
            "settings": [{"name": name, **space[name]} for name in self.names],
            "trials": [self._drawn(row, space) for row in self.rows],
            "best": self._best_over_cost(),
            "further": [],
            "front": [],
        }

    def curves(self, numbers: Sequence[int] | None) -> dict[int, tuple[list[float], list[float | None]]]:
        """The curves of these jobs by number, or of all."""
        wanted = None if numbers is None else set(numbers)
        return {
            row.number: curve_of(row.job.pk, self.metric, row.job.metric_seq)
            for row in self.rows
            if row.job.metric_seq and (wanted is None or row.number in wanted)
        }

    def _space(self) -> dict[str, SettingJson]:
        """A range or choices for each argument that differs, from the values that the jobs have."""
        return {
            name: _setting([row.settings[name] for row in self.rows if name in row.settings])
            for name in self.names
        }

    def _drawn(self, row: GridRow, space: Mapping[str, SettingJson]) -> DrawnTrial:
        step = row.job.step
        reports: list[tuple[int, float | None]] = [] if step is None else [(step, row.value)]
        return {
            "number": row.number,
            "job": str(row.job.pk),
            "state": row.job.state,
            "seq": row.job.metric_seq,
            "value": row.value,
            "rung": step,
            "settings": [
                _place(row.settings[name], space[name]) if name in row.settings else None
                for name in self.names
            ],
            "reports": reports,
            "further": [],
        }

    def _best_over_cost(self) -> list[tuple[float, float]]:
        """The best value so far after each number of device-hours, the jobs in their order."""
        points: list[tuple[float, float]] = []
        hours, best = 0.0, math.inf
        for row in self.rows:
            hours += row.device_s / HOUR_S
            cost = self.cost(row)
            if cost < best:
                best = cost
                points.append((hours, row.value or 0.0))
        return [*points, (hours, points[-1][1])] if points else []


def _settings_of(job: Job) -> Mapping[str, Value]:
    index = {} if job.array_index is None else {INDEX: job.array_index}
    return {**index, **job.arguments}


def _key(value: Value | None) -> tuple[str, str]:
    """So that 1 and True differ, and what is missing differs from every value."""
    return type(value).__name__, str(value)


def _place(value: Value, setting: SettingJson) -> Value:
    """A value as its axis has it: the choices of an axis are texts."""
    return text_of(value) if "choices" in setting else value


def _setting(values: Sequence[Value]) -> SettingJson:
    numbers = [
        float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        low, high = min(numbers), max(numbers)
        whole = all(isinstance(value, int) for value in values)
        log = low > 0 and high / low >= LOG_FROM
        return {"type": "int" if whole else "float", "low": low, "high": high} | (
            {"log": True} if log else {}
        )
    return {"type": "categorical", "choices": list(dict.fromkeys(text_of(value) for value in values))}


def _searched(name: str, json: SettingJson) -> Setting:
    """An axis as a setting of a space; unlike those that people write, its name may be any argument's."""
    if "choices" in json:
        return Setting(name, "categorical", choices=tuple(json["choices"]))
    return Setting(name, json["type"], json["low"], json["high"], json.get("log", False))
