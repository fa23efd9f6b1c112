"""The table of all jobs that the reader may see; everything about it stands in the address."""

from typing import Any, TypedDict
from urllib.parse import parse_qs, urlencode
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import conditional_escape as escape
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from berth.shared import words
from dashboard.pages.reader import signed_in
from dashboard.parts import curves, job_columns, job_table, rows
from dashboard.parts.job_table import JobTable
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Job, JobState, JobView, Pool, ProjectMember
from orchestrator.people import rights

PAGE = 50
MOST_IN_A_WINDOW = 200
MOST_CURVES = 100
MOST_VIEWS = 100
SMALL_FACTS = (
    "owner",
    "pool",
    "submitted",
    "started",
    "ended",
    "duration",
    "waited",
    "attempts",
    "array",
    "sweep",
)


@require_GET
def jobs(request: HttpRequest) -> HttpResponse:
    """Filters, ``cols``, ``sort``, ``group`` and ``by`` as in ``job_table``; ``before``, ``after`` and ``from`` page without scripts."""
    table = job_table.read_table(signed_in(request), request.GET)
    names = job_table.names_of(table.jobs)
    heads = _heads(table)
    context = {
        "nav": "jobs",
        "table": table,
        "placed": [
            {"column": each.column, "classes": each.classes, "head": heads.get(each.column.key)}
            for each in job_columns.place(table.columns)
        ],
        "chosen": {name: table.wanted.get(name, "") for name in job_table.FILTERS},
        "narrowed": _narrowed(table),
        "any_filter": any(table.wanted.get(name) for name in job_table.FILTERS),
        "grid_query": urlencode(
            {name: table.wanted[name] for name in job_table.FILTERS if name in table.wanted}
        ),
        "states": JobState.values,
        "pools": list(Pool.objects.values_list("name", flat=True)),
        "projects": _projects(table),
        "views": list(JobView.objects.select_related("owner")[:MOST_VIEWS]),
        "offered": _offered(table, names),
        "heads": heads,
        "hidden": [
            (name, table.wanted[name]) for name in ("sort", "array", "sweep", "arg") if table.wanted.get(name)
        ],
        "groupings": _groupings(names),
        "names": names,
        "total": table.jobs.order_by().count(),
        "newest": table.jobs.order_by("-pk").values_list("pk", flat=True).first(),
        **(_grouped(table, names) if table.group else _listed(table, request.GET)),
    }
    return render(request, "dashboard/jobs.html", context)


@require_GET
def job_rows(request: HttpRequest) -> HttpResponse:
    """Rows alone, of the window ``from``, ``count`` (and ``before`` in the usual order); the total stands in a header."""
    table = job_table.read_table(signed_in(request), request.GET)
    start, count = _whole(request.GET.get("from"), 10**9), _whole(request.GET.get("count"), MOST_IN_A_WINDOW)
    found = job_table.window(table, start, count or PAGE, before=_uuid(request.GET.get("before")))
    answer = render(request, "dashboard/_job_rows.html", {"rows": lines(table, found)})
    answer["X-Total"] = str(table.jobs.order_by().count())
    return answer


@require_GET
def job_curves(request: HttpRequest) -> JsonResponse:
    """Paths of the curves of the ``jobs`` that the reader may see, by id."""
    ids = [pk for text in request.GET.get("jobs", "").split(",")[:MOST_CURVES] if (pk := _uuid(text))]
    visible = Job.objects.visible_to(request.user).filter(pk__in=ids)
    found = visible.only("last_values", "metric_seq")
    return JsonResponse({str(job.pk): curves.path_of(job) for job in found})


@require_GET
def peek(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """What a row has no room for, as a part of the page."""
    visible = Job.objects.visible_to(request.user).select_related("owner", "pool", "array", "trial__sweep")
    job = get_object_or_404(visible, pk=job_id)
    line = _line(job, rows.device_labels([job.pk])[job.pk], signed_in(request))
    facts = [job_columns.BY_KEY[key] for key in SMALL_FACTS]
    context = {
        "job": job,
        "row": line.row,
        "may_steer": line.may_steer,
        "curve": curves.path_of(job) if job.metric_seq else "",
        "facts": [(each.title, text) for each in facts if (text := each.cell(line))],
        "arguments": [(name, job_columns.plain(value)) for name, value in job.arguments.items()],
        "values": [(name, words.value(rows.recorded(value))) for name, value in job.last_values.items()],
    }
    return render(request, "dashboard/_job_peek.html", context)


@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    """Give the ``query`` of an address a ``name``; one's own view of that name is replaced."""
    name, user = request.POST.get("name", "").strip()[:60], signed_in(request)
    given = {key: text[0] for key, text in parse_qs(request.POST.get("query", "")[:4000].lstrip("?")).items()}
    query = urlencode({key: text for key, text in given.items() if key in job_table.STATE})
    if not name or len(query) > 2000:
        messages.error(request, _("Give the view a name of up to 60 letters."))
        return redirect(f"{reverse('jobs')}?{query[:2000]}")
    try:
        with transaction.atomic():
            JobView.objects.update_or_create(
                name=name, owner=user, defaults={"query": query}, create_defaults={"query": query, "created_at": timezone.now()}
            )  # fmt: skip
        messages.success(request, _("The view {name} is saved for everybody.").format(name=name))
    except IntegrityError:
        said = _("Somebody else has a view with the name {name}. Choose another name.")
        messages.error(request, said.format(name=name))
    return redirect(f"{reverse('jobs')}?{query}")


@require_POST
def remove_view(request: HttpRequest, view_id: int) -> HttpResponse:
    """For its owner and admins."""
    view = get_object_or_404(JobView, pk=view_id)
    user = signed_in(request)
    if view.owner_id != user.pk and not user.is_staff:
        raise PermissionDenied(_("Only the person who saved this view and admins may remove it."))
    view.delete()
    messages.success(request, _("The view {name} is removed.").format(name=view.name))
    return redirect("jobs")


def job_by_part(request: HttpRequest, part: str) -> HttpResponse:
    """Redirect to the job whose id has this part; 404 unless exactly one job matches."""
    try:
        found = find_job(Job.objects.all(), signed_in(request), part)
    except OrchestratorError as error:
        raise Http404 from error
    return redirect("job", job_id=found.pk)


class ShownRow(TypedDict):
    job: Job
    row: rows.OwnRow
    cells: SafeString
    may_steer: bool


def lines(table: JobTable, found: list[Job]) -> list[ShownRow]:
    """The rows of these jobs with the table's columns."""
    labels = rows.device_labels([job.pk for job in found if rows.holds_devices(job)])
    may_steer = rights.steered_by(table.user)
    # Cells are put together here: in the template's own loop they cost a fifth of the page's time more.
    placed = [(_cell_start(each), each.column) for each in job_columns.place(table.columns)]
    now = timezone.now()
    shown: list[ShownRow] = []
    for job in found:
        line = job_columns.Line(job, rows.own_row(job, labels.get(job.pk, []), now), now, may_steer(job))
        cells = SafeString("".join(f"{start}{escape(column.cell(line))}</td>" for start, column in placed))
        shown.append({"job": job, "row": line.row, "cells": cells, "may_steer": line.may_steer})
    return shown


def _cell_start(placed: job_columns.Placed) -> str:
    column = placed.column
    kind = "" if ":" in column.key else f" of-{column.key}"  # for the style sheet: labels have languages
    return format_html('<td class="{}{}" data-label="{}">', placed.classes, kind, column.title)


def _line(job: Job, labels: list[str], user: Any) -> job_columns.Line:
    now = timezone.now()
    return job_columns.Line(job, rows.own_row(job, labels, now), now, rights.may_steer(user, job))


class Listed(TypedDict):
    rows: list[ShownRow]
    start: int
    newer: str
    older: str


def _projects(table: JobTable) -> list[str]:
    """The projects to filter by: the reader's, and the one of the address."""
    own = ProjectMember.objects.filter(user=table.user).values_list("project_id", flat=True)
    return sorted({*own, *filter(None, [table.wanted.get("project", "")])})


def _listed(table: JobTable, given: QueryDict) -> Listed:
    """The first rows, or the page that a browser without scripts asks for."""
    if table.sort != job_table.NEWEST_FIRST:
        start = _whole(given.get("from"), 10**9)
        found = job_table.window(table, start, PAGE + 1)
        newer = table.address(**{"from": str(max(0, start - PAGE))}) if start else ""
        older = table.address(**{"from": str(start + PAGE)}) if len(found) > PAGE else ""
        return {"rows": lines(table, found[:PAGE]), "start": start, "newer": newer, "older": older}
    before, after = _uuid(given.get("before")), _uuid(given.get("after"))
    found, more_newer, more_older = page_of(table, before, after)
    return {
        "rows": lines(table, found),
        "start": 0,
        "newer": table.address(after=str(found[0].pk)) if found and more_newer else "",
        "older": table.address(before=str(found[-1].pk)) if found and more_older else "",
    }


def page_of(table: JobTable, before: UUID | None, after: UUID | None) -> tuple[list[Job], bool, bool]:
    """One page of jobs, newest first, and whether there are newer and older ones."""
    if after:
        nearest: QuerySet[Job] = table.jobs.filter(pk__gt=after).order_by("pk")
        ids = list(nearest.values_list("pk", flat=True)[: PAGE + 1])
        found = job_table.window(table, 0, PAGE, before=_after(ids[:PAGE]))
        return found, len(ids) > PAGE, True
    found = job_table.window(table, 0, PAGE + 1, before=before)
    return found[:PAGE], before is not None, len(found) > PAGE


def _after(ids: list[UUID]) -> UUID | None:
    """The id that a page of these ids comes right behind."""
    return UUID(int=min(ids[-1].int + 1, (1 << 128) - 1)) if ids else None


class GroupedJobs(TypedDict):
    """The groups of the table, and how many of them are not shown."""

    groups: list[job_table.Group]
    more_groups: int
    measure: str


def _grouped(table: JobTable, names: job_table.Names) -> GroupedJobs:
    measure = job_table.measure_of(table, names)
    found = job_table.groups(table, measure)
    return {
        "groups": found[: job_table.MOST_GROUPS],
        "more_groups": max(0, len(found) - job_table.MOST_GROUPS),
        "measure": measure,
    }


def _narrowed(table: JobTable) -> list[dict[str, str]]:
    """Filters without a field of their own, each with the address without it."""
    said = {"array": _("array"), "sweep": _("sweep"), "arg": ""}
    return [
        {"text": f"{said[name]} {table.wanted[name]}".strip(), "without": table.address(**{name: ""})}
        for name in said
        if table.wanted.get(name)
    ]


def _heads(table: JobTable) -> dict[str, dict[str, str]]:
    """For each column that sorts: the address that sorts by it, or turns the order round."""
    heads = {}
    for column in [job_columns.NAME, *table.columns]:
        if column.order is None and column.key != "loss":
            continue
        down = table.sort == f"-{column.key}"
        is_sorted = down or table.sort == column.key
        first = column.key if column.key in {"name", "loss", "owner", "state", "pool"} else f"-{column.key}"
        turned = column.key if down else f"-{column.key}"
        heads[column.key] = {
            "address": table.address(sort=turned if is_sorted else first),
            "sorted": ("descending" if down else "ascending") if is_sorted else "",
        }
    return heads


class OfferedColumn(TypedDict):
    """A column that the table may have."""

    key: str
    label: str
    kind: str  # empty: one of Berth's own
    is_chosen: bool


def _offered(table: JobTable, names: job_table.Names) -> list[OfferedColumn]:
    """Every column that could be chosen, the chosen ones first and in their order."""
    chosen = [column.key for column in table.columns]
    found = [f"arg:{name}" for name in names.arguments] + [f"metric:{name}" for name in names.metrics]
    keys = dict.fromkeys([*chosen, *job_columns.BY_KEY, *found])
    columns = [column for key in keys if (column := job_columns.column_of(key))]
    kinds = {"arg": _("argument"), "metric": _("metric")}
    return [
        {
            "key": each.key,
            "label": each.title,
            "kind": kinds.get(each.key.partition(":")[0], ""),
            "is_chosen": each.key in chosen,
        }
        for each in columns
    ]


def _groupings(names: job_table.Names) -> list[tuple[str, str]]:
    return [
        *((key, _(label)) for key, label in job_table.GROUPS.items()),
        *((f"arg:{name}", _("argument {name}").format(name=name)) for name in names.arguments),
    ]


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def _whole(text: str | None, most: int) -> int:
    return min(most, int(text)) if text and text.isascii() and text.isdecimal() and len(text) < 12 else 0
