"""The list of sweeps and the page of one, with what its script draws; buttons go through the REST API."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, TypedDict
from uuid import UUID

from django.db.models import Count, Max, Min, Q, Sum
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from berth.shared import words
from dashboard.pages.reader import signed_in
from dashboard.parts import sweep_rows
from dashboard.parts.sweep_rows import HOUR_S, MOST_ROWS
from orchestrator.api.resources.sweep_view import SETTINGS_IGNORED
from orchestrator.exceptions import Forbidden
from orchestrator.models import RungReport, Sweep, SweepTrial
from orchestrator.sentences import say_json
from orchestrator.sweeps import creation
from orchestrator.sweeps.ending import running_in, used_device_s
from orchestrator.sweeps.history_rows import ignores_settings, metrics_of, rungs_of
from orchestrator.sweeps.keeping import BEST_KEPT, files_of

PAGE = 50


@require_GET
def sweeps(request: HttpRequest) -> HttpResponse:
    """The reader's sweeps, newest first; ``before`` is the id of a sweep."""
    found = Sweep.objects.visible_to(request.user).select_related("owner")
    try:
        found = found.filter(pk__lt=UUID(request.GET["before"])) if request.GET.get("before") else found
    except ValueError:
        found = found.none()
    page = list(found.order_by("-pk")[: PAGE + 1])
    context = {
        "nav": "sweeps",
        "rows": _list_rows(page[:PAGE]),
        "older": page[PAGE - 1].pk if len(page) > PAGE else None,
    }
    return render(request, "dashboard/sweeps.html", context)


class ListedSweep(TypedDict):
    """A row of the list."""

    sweep: Sweep
    trials: int
    used_s: float
    best: float | None
    why: str


def _list_rows(page: list[Sweep]) -> list[ListedSweep]:
    """What the list says of each sweep, in a few queries for all of them."""
    trials = SweepTrial.objects.filter(sweep__in=page).values("sweep")
    reports = RungReport.objects.filter(trial__sweep__in=page).values("trial__sweep")
    sums = trials.annotate(count=Count("pk", filter=Q(lost=False)), used=Sum("job__attained_gpu_s"))
    ends = reports.annotate(low=Min("value"), high=Max("value"))
    of_trials = {row["sweep"]: row for row in sums}
    values = {row["trial__sweep"]: row for row in ends}
    running_s = {pk: sum(each.values()) for pk, each in running_in(page).items()}
    return [
        {
            "sweep": sweep,
            "trials": of_trials[sweep.pk]["count"] if sweep.pk in of_trials else 0,
            "used_s": running_s[sweep.pk]
            + (of_trials[sweep.pk]["used"] or 0.0 if sweep.pk in of_trials else 0.0),
            "best": _best(values[sweep.pk], sweep) if sweep.pk in values else None,
            "why": say_json(sweep.why),
        }
        for sweep in page
    ]


def _best(values: Mapping[str, Any], sweep: Sweep) -> float | None:
    best: float | None = values["low" if sweep.direction == "minimize" else "high"]
    return best


@require_GET
def sweep(request: HttpRequest, sweep_id: UUID) -> HttpResponse:
    """One sweep; ``sort`` orders its trials."""
    found = _visible(request, sweep_id)
    rows = sweep_rows.rows_of(found)
    in_order, sort = sweep_rows.ordered(rows, request.GET.get("sort", "value")[:80])
    best, *_worse = [*sorted((row for row in rows if row.value is not None), key=lambda row: row.cost), None]
    names = list(found.space)
    goals = metrics_of(found)
    further = [metric.name for metric in goals[1:]]
    front = sweep_rows.front_of(found, rows)
    used_s = used_device_s(found)
    counted = sum(not row.trial.lost for row in rows)  # in the budget
    context = {
        "nav": "sweeps",
        "sweep": found,
        "may_steer": _may_steer(request, found),
        "why": say_json(found.why),
        "warnings": _warnings(found, rows),
        "best": best,
        "best_settings": [(name, best.cell(name)) for name in names if best.cell(name)] if best else [],
        "counts": list(sweep_rows.counts_of(rows).items()),
        "files": files_of(found),
        "best_kept": BEST_KEPT,
        "used_s": used_s,
        "used_percent": _percent(used_s, found.max_device_s),
        "device_hours": None if found.max_device_s is None else round(found.max_device_s / HOUR_S, 4),
        "counted": counted,
        "trials_percent": _percent(counted, found.max_trials),
        "goals": goals,
        "rungs": ", ".join(words.value(rung) for rung in rungs_of(found)),
        "importance": sweep_rows.shares(found, rows),
        "columns": _columns(names, further, sort),
        "further": further,
        "front": front,
        "front_metrics": f" {_('and')} ".join(metric.name for metric in goals),
        "learns_from": Sweep.objects.visible_to(request.user).filter(pk__in=found.learns_from),
        "rows": [
            {
                "row": row,
                "cells": _cells(row, names, further),
                "is_best": row in front if further else row is best,
            }
            for row in in_order[:MOST_ROWS]
        ],
        "total": len(rows),
        "compared": ",".join(row.trial.job.short_id for row in sorted(rows, key=lambda row: row.cost)[:5]),
    }
    return render(request, "dashboard/sweep.html", context)


def _cells(row: sweep_rows.Row, names: list[str], further: list[str]) -> SafeString:
    """The further values and the settings of one row; thousands of them cost too much as nodes of a template."""
    values = [
        "" if value is None else words.value(value)
        for _name, value in zip_longest(further, row.further[: len(further)])
    ]
    texts = [*values, *(row.cell(name) for name in names)]
    return format_html_join("", '<td class="mono">{}</td>', ((text,) for text in texts))


def _visible(request: HttpRequest, sweep_id: UUID) -> Sweep:
    found = Sweep.objects.visible_to(request.user).select_related("owner").filter(pk=sweep_id).first()
    if found is None:
        raise Http404
    return found


def _may_steer(request: HttpRequest, sweep: Sweep) -> bool:
    try:
        creation.check_steer(signed_in(request), sweep)
    except Forbidden:
        return False
    return True


def _warnings(sweep: Sweep, rows: list[sweep_rows.Row]) -> list[str]:
    return [_(SETTINGS_IGNORED)] if ignores_settings(row.reports[0] for row in rows if row.reports) else []


def _percent(used: float, limit: float | None) -> float | None:
    return None if not limit else round(min(100.0, 100 * used / limit), 1)


def _columns(names: list[str], further: list[str], sort: str) -> list[dict[str, str]]:
    """The columns that the table can be ordered by; the one that orders it turns round at the next click."""
    columns = [("number", _("Trial")), ("state", _("State")), ("value", ""), ("time", _("Device time"))]
    columns += [(f"further.{place}", name) for place, name in enumerate(further)]
    columns += [(f"set.{name}", name) for name in names]
    return [
        {
            "name": text,
            "sort": f"-{key}" if key == sort else key,
            "order": "ascending" if key == sort else "descending" if f"-{key}" == sort else "",
        }
        for key, text in columns
    ]


@require_GET
def sweep_data(request: HttpRequest, sweep_id: UUID) -> HttpResponse:
    """What the page draws; 204 while nothing has changed since the version ``seen``."""
    found = _visible(request, sweep_id)
    if request.GET.get("seen") == sweep_rows.version_of(found):
        return HttpResponse(status=204)
    return JsonResponse(sweep_rows.picture(found, sweep_rows.rows_of(found)))


@require_GET
def sweep_curves(request: HttpRequest, sweep_id: UUID) -> HttpResponse:
    """Curves by the number of the trial: of ``trials``, numbers with commas between them, or of all."""
    found = _visible(request, sweep_id)
    asked = [
        part for part in request.GET.get("trials", "")[:8000].split(",") if part.isascii() and part.isdigit()
    ]
    numbers = {int(part[:9]) for part in asked} if asked else None
    return JsonResponse(sweep_rows.curves(found, numbers))
