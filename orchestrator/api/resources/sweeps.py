"""Sweeps: begin, list, read, change, stop; their trials as JSON and CSV."""

from collections.abc import Iterable
from typing import Annotated, Literal
from uuid import UUID

import orjson
from django.contrib.auth.models import User
from django.db.models import Q
from django.http import HttpResponse
from ninja import Query, Router
from pydantic import Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import JsonObject, read_object
from orchestrator.api.http.writing import write_csv
from orchestrator.api.resources.job_filters import SHORTEST_PART
from orchestrator.api.resources.recipes import RecipeOut, show_recipe
from orchestrator.api.resources.submission import (
    KEY_PARAMETER,
    read_idempotency_key,
    read_submit,
    request_body,
)
from orchestrator.api.resources.sweep_view import SweepOut, TrialOut, show_sweep, show_trial, with_trials
from orchestrator.exceptions import Malformed, NotFound, Sentence
from orchestrator.models import Sweep, SweepState, SweepTrial
from orchestrator.people import audit
from orchestrator.sentences.errors import said
from orchestrator.sweeps import asking, creation, ensembles, pausing
from orchestrator.sweeps.ending import stop
from orchestrator.sweeps.ensembles import EnsembleSpec
from orchestrator.sweeps.history_rows import (
    metrics_of,
)

router = Router()


class SweepFilters(Paging):
    state: SweepState | None = None
    owner: str | None = Field(None, max_length=150)


class TrialsAsked(Paging):
    format: Literal["json", "csv"] = "json"
    limit: Annotated[int, Field(ge=1, le=500)] = 500


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
