"""Jobs looked at as a sweep: which of their differing arguments mattered; the address filters as that of Jobs does."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from dashboard.parts import job_table
from dashboard.parts.job_grid import MOST_JOBS, GridRow, JobGrid

DIRECTIONS = ("minimize", "maximize")
COMPARED = 5


@require_GET
def grid(request: HttpRequest) -> HttpResponse:
    """Filters as of Jobs; ``metric``, ``direction`` and ``sort`` choose what is shown, and in which order."""
    found = _grid_of(request)
    sort = request.GET.get("sort", "value")[:80]
    ranked = sorted((row for row in found.rows if row.value is not None), key=found.cost)
    best = ranked[0] if ranked else None
    wanted = _wanted(request)
    query = urlencode(wanted)
    context = {
        "nav": "jobs",
        "grid": found,
        "best": best,
        "best_settings": [(name, best.cell(name)) for name in found.names if best.cell(name)] if best else [],
        "importance": found.shares(),
        "columns": _columns(found, sort, wanted),
        "rows": [
            {"row": row, "cells": [row.cell(name) for name in found.names], "is_best": row is best}
            for row in _ordered(found, sort)
        ],
        "most": MOST_JOBS,
        "picture": f"{reverse('job-grid-picture')}?{query}",
        "curves": f"{reverse('job-grid-curves')}?{query}",
        "jobs_address": f"{reverse('jobs')}?{urlencode(_filters(request))}",
        "filters": list(_filters(request).items()),
        "directions": DIRECTIONS,
        "compared": ",".join(row.job.short_id for row in islice(ranked, COMPARED)),
    }
    return render(request, "dashboard/grid.html", context)


@require_GET
def grid_picture(request: HttpRequest) -> HttpResponse:
    """What the page draws; 204 while nothing has changed since the version ``seen``."""
    found = _grid_of(request)
    if request.GET.get("seen") == found.version():
        return HttpResponse(status=204)
    return JsonResponse(found.picture())


@require_GET
def grid_curves(request: HttpRequest) -> HttpResponse:
    """Curves by the number of the job in the grid: of ``trials``, numbers with commas between them, or of all."""
    asked = [
        int(part[:9])
        for part in request.GET.get("trials", "")[:8000].split(",")
        if part.isascii() and part.isdigit()
    ]
    return JsonResponse(_grid_of(request).curves(asked or None))


def _grid_of(request: HttpRequest) -> JobGrid:
    jobs = job_table.read_table(signed_in(request), request.GET).jobs
    direction = request.GET.get("direction")
    return JobGrid(
        jobs,
        metric=request.GET.get("metric", "")[:200],
        maximize=direction == "maximize" if direction in DIRECTIONS else None,
    )


def _filters(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET[name] for name in job_table.FILTERS if request.GET.get(name)}


def _wanted(request: HttpRequest) -> dict[str, str]:
    own = {name: request.GET[name] for name in ("metric", "direction") if request.GET.get(name)}
    return {**_filters(request), **own}


def _ordered(found: JobGrid, wanted: str) -> list[GridRow]:
    """The rows by value, number, state, device time or an argument; ``-`` turns the order round."""
    name, backwards = wanted.removeprefix("-"), wanted.startswith("-")
    if name.startswith("set.") and name[4:] in found.names:
        return sorted(found.rows, key=lambda row: _sortable(row, name[4:]), reverse=backwards)
    keys: dict[str, Callable[[GridRow], Any]] = {
        "number": lambda row: row.number,
        "state": lambda row: row.job.state,
        "time": lambda row: row.device_s,
    }
    return sorted(found.rows, key=keys.get(name, found.cost), reverse=backwards)


def _sortable(row: GridRow, name: str) -> tuple[int, float, str]:
    """Numbers before texts, and what is missing last."""
    value = row.settings.get(name)
    if value is None:
        return (2, 0.0, "")
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _columns(found: JobGrid, sort: str, wanted: dict[str, str]) -> list[dict[str, str]]:
    """The columns that the table can be ordered by; the one that orders it turns round at the next click."""
    columns = [
        ("number", _("Job")),
        ("state", _("State")),
        ("value", found.metric),
        ("time", _("Device time")),
    ]
    columns += [(f"set.{name}", name) for name in found.names]
    return [
        {
            "name": text,
            "address": urlencode({**wanted, "sort": f"-{key}" if key == sort else key}),
            "order": "ascending" if key == sort else "descending" if f"-{key}" == sort else "",
        }
        for key, text in columns
    ]
