"""Sweeps: begin, list, read, change, stop; their trials as JSON and CSV."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import zip_longest
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from django.contrib.auth.models import User
from django.db.models import Prefetch, Q, QuerySet
from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import JsonObject, read_object
from orchestrator.api.http.writing import write_csv
from orchestrator.api.resources.job_filters import SHORTEST_PART
from orchestrator.api.resources.recipes import RecipeOut, show_recipe
from orchestrator.api.resources.schemas import FactOut
from orchestrator.api.resources.submission import (
    KEY_PARAMETER,
    read_idempotency_key,
    read_submit,
    request_body,
)
from orchestrator.exceptions import Malformed, NotFound, Sentence
from orchestrator.models import RungReport, Sweep, SweepState, SweepTrial
from orchestrator.people import audit
from orchestrator.sentences import say_json
from orchestrator.sentences.errors import said
from orchestrator.sweeps import asking, creation, ensembles, pausing
from orchestrator.sweeps.ending import stop, used_device_s
from orchestrator.sweeps.ensembles import EnsembleSpec
from orchestrator.sweeps.history_rows import (
    best_of,
    first_reports,
    front_of,
    ignores_settings,
    metrics_of,
    rungs_of,
)

router = Router()

HOUR_S = 3600.0
SETTINGS_IGNORED = (
    "All trials report the same value. Does the script read its settings? They come as --name value, "
    "or as variables with hand_over env."
)


class SweepFilters(Paging):
    state: SweepState | None = None
    owner: str | None = Field(None, max_length=150)


class TrialsAsked(Paging):
    format: Literal["json", "csv"] = "json"
    limit: Annotated[int, Field(ge=1, le=500)] = 500


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
    best: TrialOut | None = Field(description="in the first metric")
    front: list[TrialOut] = Field(
        default_factory=list,
        description="with several metrics, the trials that no other one beats in all of them",
    )
    created_at: datetime
    ended_at: datetime | None
    warnings: list[str] = Field(default_factory=list, description="of the submit, and what looks wrong since")


@router.post(
    "",
    response={201: SweepOut},
    openapi_extra={"requestBody": request_body("sweep", "SweepSpec"), "parameters": [KEY_PARAMETER]},
)
def begin_sweep(request: ApiRequest) -> SweepOut:
    """Begin a search for good settings; its trials are jobs."""
    key = read_idempotency_key(request)
    submit = read_submit(request, "sweep")

    def render(sweep: Sweep, warnings: list[str]) -> JsonObject:
        as_sent: JsonObject = orjson.loads(
            orjson.dumps(_show_new(sweep, warnings).model_dump(), option=orjson.OPT_UTC_Z)
        )
        return as_sent

    created = creation.create(
        request.user,
        asking.parse(submit.job),
        script=submit.script,
        bundle=submit.bundle,
        idempotency_key=key,
        render=render,
    )
    return SweepOut(**created.answer) if created.answer else _show_new(created.sweep, created.warnings)


def _show_new(sweep: Sweep, warnings: list[str]) -> SweepOut:
    answer = show_sweep(sweep)
    answer.warnings += [said(warning) for warning in warnings]
    return answer


@router.get("", response=Page[SweepOut])
def list_sweeps(request: ApiRequest, filters: Query[SweepFilters]) -> Page[SweepOut]:
    """The caller's sweeps, newest first; operators see everybody's."""
    rows = with_trials(Sweep.objects.visible_to(request.user))
    if filters.state is not None:
        rows = rows.filter(state=filters.state)
    if filters.owner is not None:
        rows = rows.filter(owner__username=filters.owner)
    return page(Page[SweepOut], request, rows, filters, show=show_sweep)


@router.get("/{sweep_id}", response=SweepOut)
def get_sweep(request: ApiRequest, sweep_id: str) -> SweepOut:
    """One sweep by its id, or by any unambiguous part of it."""
    return show_sweep(find_sweep(request.user, sweep_id))


@router.patch(
    "/{sweep_id}",
    response=SweepOut,
    openapi_extra={
        "requestBody": {
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SweepChanges"}}}
        }
    },
)
def change_sweep(request: ApiRequest, sweep_id: str) -> SweepOut:
    """Change name, budget (trials, device_hours) or width, also while it runs; more budget continues an ended one."""
    sweep = find_sweep(request.user, sweep_id)
    changes = read_object(request.body)
    if not changes:
        raise Malformed(
            Sentence(
                "Nothing to change: give one of {model_fields}.",
                model_fields=", ".join(asking.SweepChanges.model_fields),
            )
        )
    creation.update(request.user, sweep, changes)
    _note(request, sweep, "sweep.changed", f"Changed {', '.join(sorted(changes))}.")
    return show_sweep(find_sweep(request.user, str(sweep.pk)))


@router.post("/{sweep_id}/stop", response=SweepOut)
def stop_sweep(request: ApiRequest, sweep_id: str) -> SweepOut:
    """End a sweep and its open trials; repeating this is harmless."""
    sweep = find_sweep(request.user, sweep_id)
    creation.check_steer(request.user, sweep)
    stop(sweep, by=request.user.get_username())
    _note(request, sweep, "sweep.stop", "Stopped it.")
    return show_sweep(find_sweep(request.user, str(sweep.pk)))


@router.post("/{sweep_id}/pause", response=SweepOut)
def pause_sweep(request: ApiRequest, sweep_id: str) -> SweepOut:
    """Begin no further trial; those that run are paused at their next rung."""
    sweep = find_sweep(request.user, sweep_id)
    creation.check_steer(request.user, sweep)
    pausing.pause(sweep, by=request.user.get_username())
    _note(request, sweep, "sweep.pause", "Paused it.")
    return show_sweep(find_sweep(request.user, str(sweep.pk)))


@router.post("/{sweep_id}/resume", response=SweepOut)
def resume_sweep(request: ApiRequest, sweep_id: str) -> SweepOut:
    """Continue a paused sweep."""
    sweep = find_sweep(request.user, sweep_id)
    creation.check_steer(request.user, sweep)
    pausing.resume(sweep)
    _note(request, sweep, "sweep.resume", "Resumed it.")
    return show_sweep(find_sweep(request.user, str(sweep.pk)))


class EnsembleIn(EnsembleSpec):
    """Which trials to put together, and how."""


@router.post("/{sweep_id}/ensemble", response={201: RecipeOut})
def ensemble_of_sweep(request: ApiRequest, sweep_id: str, body: EnsembleIn) -> RecipeOut:
    """Keep the best trials as models of the caller, and submit a job that averages their answers or weights."""
    sweep = find_sweep(request.user, sweep_id)
    recipe = ensembles.create(request.user, sweep, body)
    _note(request, sweep, "sweep.ensemble", f"Made the ensemble {recipe}.")
    return show_recipe(recipe)


@router.get("/{sweep_id}/trials", response=Page[TrialOut])
def list_trials(
    request: ApiRequest, sweep_id: str, asked: Query[TrialsAsked]
) -> Page[TrialOut] | HttpResponse:
    """The trials in their order; with format=csv all of them as a table, a column for each setting."""
    sweep = find_sweep(request.user, sweep_id)
    if asked.format == "csv":
        return trials_as_csv(sweep)
    rows = SweepTrial.objects.filter(sweep=sweep).select_related("job").prefetch_related("reports")
    names = [metric.name for metric in metrics_of(sweep)]
    return page(
        Page[TrialOut], request, rows, asked, show=lambda trial: show_trial(trial, names), ordering="number"
    )


def find_sweep(user: User, text: str) -> Sweep:
    """Find a sweep by its id, or by any unambiguous part of it.

    Raises:
        NotFound: this user may see no such sweep.
        Malformed: several sweeps match.
    """
    rows = with_trials(Sweep.objects.visible_to(user))
    try:
        named = Q(pk=UUID(text))
    except ValueError:
        plain = len(text) >= SHORTEST_PART and all(letter in "0123456789abcdef-" for letter in text.lower())
        named = Q(id__contains=text.lower()) if plain else Q(pk__in=[])
    matches = list(rows.filter(named)[:2])
    if not matches:
        raise NotFound(Sentence("There is no sweep {text!r}, or you may not see it.", text=text[:40]))
    if len(matches) > 1:
        raise Malformed(Sentence("Several sweep ids contain {text!r}. Give a longer part.", text=text[:40]))
    return matches[0]


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


CSV_HEADER = ("number", "state", "job", "value", "rung", "device_hours", "error")


def trials_as_csv(sweep: Sweep) -> HttpResponse:
    names = list(sweep.space)
    metrics = [metric.name for metric in metrics_of(sweep)]
    shown = [show_trial(trial, metrics) for trial in sweep.trials.all()]
    columns = [*CSV_HEADER, *metrics[1:], *names]
    return HttpResponse(
        write_csv(columns, _csv_rows(shown, metrics[1:], names)),
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="sweep-{sweep.short_id}.csv"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "private, no-store",
        },
    )


def _csv_rows(trials: Iterable[TrialOut], further: list[str], names: list[str]) -> Iterable[list[object]]:
    for trial in trials:
        values = (trial.values.get(name) for name in further)
        settings = (trial.settings.get(name) for name in names)
        yield [*(getattr(trial, name) for name in CSV_HEADER), *values, *settings]


def _note(request: ApiRequest, sweep: Sweep, action: str, text: str) -> None:
    """Audit an act on another person's sweep."""
    if sweep.owner_id != request.user.pk:
        subject = f"sweep {sweep.short_id} of {sweep.owner}"
        audit.record(request.user, action, subject, text, address=audit.address_of(request))
