"""Sweeps and trials as REST shows them."""

from collections import Counter
from datetime import datetime
from itertools import zip_longest
from typing import Any
from uuid import UUID

from django.db.models import Prefetch, QuerySet
from pydantic import BaseModel, Field

from orchestrator.api.http.writing import FactOut
from orchestrator.models import RungReport, Sweep, SweepTrial
from orchestrator.sentences import say_json
from orchestrator.sweeps.ending import used_device_s
from orchestrator.sweeps.history_rows import (
    best_of,
    first_reports,
    front_of,
    ignores_settings,
    metrics_of,
    rungs_of,
)

HOUR_S = 3600.0
SETTINGS_IGNORED = (
    "All trials report the same value. Does the script read its settings? They come as --name value, "
    "or as variables with hand_over env."
)


class TrialReportOut(BaseModel):
    rung: int = Field(description="the step")
    value: float | None = Field(description="null: failed, or not a finite number")


class TrialOut(BaseModel):
    """One point of the space."""

    number: int
    state: str = Field(description="running, paused, ended, stopped or failed")
    job: UUID
    job_state: str
    settings: dict[str, Any]
    value: float | None = Field(description="at its last rung")
    values: dict[str, float | None] = Field(
        default_factory=dict, description="of every metric at its last rung; empty before it"
    )
    rung: int | None = Field(description="the last that it reached")
    target: int | None = Field(description="the rung that it trains to or waits at; null: the end")
    reports: list[TrialReportOut]
    error: str = Field(description="of a trial that failed")
    lost: bool = Field(description="by a fault of the machine; neither told to the sampler nor counted")
    device_hours: float = Field(description="of its ended attempts")
    created_at: datetime
    ended_at: datetime | None


class SweepMetricOut(BaseModel):
    name: str
    direction: str = Field(description="minimize or maximize")


class GainOut(BaseModel):
    device_hours: float = Field(description="the further device-hours that the rule looks at")
    gain: float = Field(description="the smallest improvement of the metric that is worth them")


class SweepOut(BaseModel):
    id: UUID
    short_id: str
    name: str
    owner: str
    pool: str
    state: str = Field(description="running, paused, ended, stopped or failed")
    reason: str = Field(description="why it has ended")
    why: FactOut | None = Field(description="what reason is made of")
    metric: str = Field(description="the first one, where there are several")
    direction: str
    metrics: list[SweepMetricOut] = Field(
        default_factory=list, description="all of them, with their directions"
    )
    space: dict[str, Any]
    sampler: str
    seed: int
    hand_over: str
    early_stopping: bool
    rungs: list[int] = Field(
        description="steps at which trials are compared; empty until the first trial ended"
    )
    can_resume: bool | None = Field(description="false: a trial began again at its start, so none is paused")
    max_trials: int | None
    device_hours: float | None = Field(description="the budget")
    used_device_hours: float
    stop_when: GainOut | None = Field(
        None, description="ends it where device_hours more are expected to gain less"
    )
    learns_from: list[UUID] = Field(
        default_factory=list, description="earlier sweeps whose trials its sampler knows"
    )
    min_width: int
    max_width: int
    trials: dict[str, int] = Field(description="how many, by state")
    lost_trials: int = Field(
        0, description="of them by a fault of the machine; not counted against the budget"
    )
    best: TrialOut | None = Field(description="in the first metric")
    front: list[TrialOut] = Field(
        default_factory=list,
        description="with several metrics, the trials that no other one beats in all of them",
    )
    created_at: datetime
    ended_at: datetime | None
    warnings: list[str] = Field(default_factory=list, description="of the submit, and what looks wrong since")


def with_trials(rows: QuerySet[Sweep]) -> QuerySet[Sweep]:
    """Sweeps with what ``show_sweep`` reads, in a few queries for all of them."""
    trials = SweepTrial.objects.select_related("job").prefetch_related("reports")
    return rows.select_related("owner").prefetch_related(Prefetch("trials", queryset=trials))


def show_sweep(sweep: Sweep) -> SweepOut:
    trials = {trial.pk: trial for trial in sweep.trials.all()}
    reports = [report for trial in trials.values() for report in trial.reports.all()]
    names = [metric.name for metric in metrics_of(sweep)]
    best = best_of(sweep, reports)
    front = front_of(sweep, reports) if sweep.further else []
    return SweepOut(
        id=sweep.pk,
        short_id=sweep.short_id,
        name=sweep.name,
        owner=sweep.owner.get_username(),
        pool=sweep.pool_id,
        state=sweep.state,
        reason=say_json(sweep.why),
        why=FactOut(**sweep.why) if sweep.why else None,
        metric=sweep.metric,
        direction=sweep.direction,
        metrics=[SweepMetricOut(name=one.name, direction=one.direction) for one in metrics_of(sweep)],
        space=sweep.space,
        sampler=sweep.sampler,
        seed=sweep.seed,
        hand_over=sweep.hand_over,
        early_stopping=sweep.early_stopping,
        rungs=list(rungs_of(sweep)),
        can_resume=sweep.can_resume,
        max_trials=sweep.max_trials,
        device_hours=None if sweep.max_device_s is None else sweep.max_device_s / HOUR_S,
        used_device_hours=used_device_s(sweep) / HOUR_S,
        stop_when=_gain_rule(sweep),
        learns_from=sweep.learns_from,
        min_width=sweep.min_width,
        max_width=sweep.max_width,
        trials=dict(Counter(trial.state for trial in trials.values())),
        lost_trials=sum(trial.lost for trial in trials.values()),
        best=None if best is None else show_trial(trials[best.trial_id], names, best),
        front=[show_trial(trials[one.trial_id], names, one) for one in front],
        created_at=sweep.created_at,
        ended_at=sweep.ended_at,
        warnings=[SETTINGS_IGNORED] if ignores_settings(first_reports(reports)) else [],
    )


def _gain_rule(sweep: Sweep) -> GainOut | None:
    if sweep.least_gain is None or sweep.gain_device_s is None:
        return None
    return GainOut(device_hours=sweep.gain_device_s / HOUR_S, gain=sweep.least_gain)


def _values(report: RungReport, names: list[str]) -> dict[str, float | None]:
    return dict(zip_longest(names, [report.value, *report.further][: len(names)]))


def show_trial(trial: SweepTrial, names: list[str], at: RungReport | None = None) -> TrialOut:
    """A trial with the values of its last rung, or of a given one.

    Args:
        names: of the metrics of its sweep.
    """
    reports = sorted(trial.reports.all(), key=lambda report: report.rung)
    last = at or (reports[-1] if reports else None)
    return TrialOut(
        number=trial.number,
        state=trial.state,
        job=trial.job_id,
        job_state=trial.job.state,
        settings=trial.settings,
        value=last.value if last else None,
        values=_values(last, names) if last else {},
        rung=last.rung if last else None,
        target=trial.target,
        reports=[TrialReportOut(rung=report.rung, value=report.value) for report in reports],
        error=trial.error,
        lost=trial.lost,
        device_hours=trial.job.attained_gpu_s / HOUR_S,
        created_at=trial.created_at,
        ended_at=trial.ended_at,
    )
