"""Jobs side by side; the address says which jobs, and how to show them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypedDict
from urllib.parse import urlencode

from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from berth.shared import words
from berth.shared.metric_names import chart_groups
from dashboard.pages.reader import signed_in
from dashboard.parts import code_changes, comparison, plots
from dashboard.parts.rows import recorded
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Attempt, Job
from orchestrator.models.jobs import JobQuerySet

MOST_JOBS = 24
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX"
SUGGESTED = 30
X_KINDS = ("step", "time", "relative")
KEPT = ("baseline", "x", "smooth", "log", "zoom", "all", "sort", "across", "up")
COLOURS = 8
LONGEST_LABEL = 28
FIRST_CHARTS = 12  # as static/js/numbers.js has it


class Column(TypedDict):
    """One job of the comparison."""

    job: Job
    letter: str  # by its place in the address: hidden lines are named by it
    label: str  # its name, made unique
    slot: int | None  # of the palette; None: drawn grey
    colour: str
    is_baseline: bool
    without: str  # the address of the page without this job
    code: str  # the address of what differs in its code; empty where it is the baseline's


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """``jobs`` are ids, or parts of ids, separated by commas; ``add`` is one more by name or id."""
    jobs, unknown = _wanted(request)
    if added := request.GET.get("add", "").strip()[:200]:
        found = _by_name(request, added)
        if found is not None:
            ids = [job.short_id if _is_alone(job, jobs) else str(job.pk) for job in [*jobs, found]]
            return redirect(_address(request, list(dict.fromkeys(ids))))
        unknown.append(added)
    base = request.GET.get("baseline", "")
    at = next((at for at, job in enumerate(jobs) if base in {job.short_id, str(job.pk)}), 0)
    letters = {job.pk: LETTERS[place] for place, job in enumerate(jobs)}
    table = _table(request, jobs, at) if jobs else []
    by = request.GET.get("sort", "")[:210]
    places = comparison.order(table, by.removeprefix("-"), down=by.startswith("-"))
    if places is not None:
        jobs, at = [jobs[place] for place in places], places.index(at)
        table = _table(request, jobs, at)
    columns = _columns(request, jobs, at, letters)
    context = {
        "nav": "compare",
        "columns": columns,
        "table": [(row, _sort_address(request, jobs, row.name, by)) for row in table],
        "sorted_by": by.removeprefix("-"),
        "shows_all": bool(request.GET.get("all")),
        "unknown": unknown,
        "jobs": ",".join(job.short_id for job in sorted(jobs, key=lambda job: letters[job.pk])),
        "baseline": jobs[at].short_id if jobs else "",
        "x": request.GET.get("x") if request.GET.get("x") in X_KINDS else "step",
        "smooth": _share(request.GET.get("smooth")),
        "log": request.GET.get("log") == "1",
        "hidden": request.GET.get("hidden", "")[:MOST_JOBS],
        "suggestions": list(_visible(request).order_by("-id").values_list("name", flat=True)[:SUGGESTED]),
        "waiting": _waiting(columns),
        "has_numbers": any(job.metric_seq for job in jobs),
        "most": MOST_JOBS,
        "data": [_for_script(column) for column in columns],
        **_drawings(request, columns),
    }
    return render(request, "dashboard/compare.html", context)


@require_GET
def compare_code(request: HttpRequest) -> HttpResponse:
    """``jobs`` are two: what differs between their code and packages."""
    jobs, _ = _wanted(request)
    if len(jobs) != 2:
        raise Http404
    context = {
        "nav": "compare",
        "old": jobs[0],
        "new": jobs[1],
        "changes": code_changes.code_changes(*jobs),
        "packages": code_changes.package_changes(*jobs),
        "back": f"{reverse('compare')}?{urlencode({'jobs': ','.join(job.short_id for job in jobs)}, safe=',')}",
    }
    return render(request, "dashboard/compare_code.html", context)


@require_GET
def compare_chosen(request: HttpRequest) -> HttpResponse:
    """From a form with a box for each ``job`` to the page that compares those which are chosen."""
    chosen = [text[:40] for text in request.GET.getlist("job")[:MOST_JOBS]]
    return redirect(f"{reverse('compare')}?{urlencode({'jobs': ','.join(chosen)}, safe=',')}")


def _for_script(column: Column) -> dict[str, object]:
    job = column["job"]
    return {
        "id": str(job.pk),
        "letter": column["letter"],
        "name": job.name,
        "label": column["label"],
        "colour": column["slot"],
        "final": job.is_final,
        "unit": job.step_unit,
    }


def _waiting(columns: list[Column]) -> list[tuple[str, list[tuple[Column, str]]]]:
    """The charts that the script will draw, with last values: they keep its place, and serve without a script."""
    reported = [column for column in columns if column["job"].metric_seq]
    groups = chart_groups(name for column in reported for name in column["job"].last_values)
    names = [name for group in groups for name in group][:FIRST_CHARTS]
    values = {column["job"].pk: column["job"].last_values for column in reported}
    return [
        (
            name,
            [
                (each, words.value(recorded(values[each["job"].pk][name])))
                for each in reported
                if name in values[each["job"].pk]
            ],
        )
        for name in names
    ]


def _sort_address(request: HttpRequest, jobs: list[Job], name: str, by: str) -> str:
    """Sorts by this row, or turns the order round."""
    wanted = request.GET.copy()
    wanted["sort"] = f"-{name}" if by == name else name
    wanted.pop("add", None)
    return "?" + wanted.urlencode(safe=",")


def _drawings(request: HttpRequest, columns: list[Column]) -> dict[str, object]:
    """One quantity against another, and all on parallel axes; nothing where the jobs differ in no number."""
    quantities = plots.quantities_of([column["job"] for column in columns])
    names = list(quantities)
    results = [name for name in names if name.startswith("last ")]
    across, up = request.GET.get("across", ""), request.GET.get("up", "")
    across = across if across in quantities else next(iter(names), "")
    up = (
        up
        if up in quantities
        else next((name for name in results if name != across), next(iter(names[1:]), ""))
    )
    labels = [column["label"] for column in columns]
    scatter, parallel = plots.scatter(quantities, across, up, labels), plots.parallel(quantities)
    return {
        "quantities": names,
        "across": across,
        "up": up,
        "scatter": scatter,
        "dots": [(dot, columns[dot.job]) for dot in scatter.dots] if scatter else [],
        "parallel": parallel,
        "lines": list(zip(parallel.lines, columns, strict=True)) if parallel else [],
    }


def _visible(request: HttpRequest) -> JobQuerySet:
    return Job.objects.visible_to(request.user)


def _wanted(request: HttpRequest) -> tuple[list[Job], list[str]]:
    """The jobs that the address names, in order, and the parts that name no job."""
    found: dict[Any, Job] = {}
    unknown = []
    parts = [part.strip() for part in request.GET.get("jobs", "")[:2000].split(",")]
    for part in [part for part in parts if part][:MOST_JOBS]:
        try:
            job = find_job(
                Job.objects.select_related("owner", "pool", "environment"), signed_in(request), part
            )
            found[job.pk] = job
        except OrchestratorError:
            unknown.append(part)
    return list(found.values()), unknown


def _by_name(request: HttpRequest, text: str) -> Job | None:
    """The job with this id, else the newest with this name or with this in its name."""
    try:
        return find_job(Job.objects.all(), signed_in(request), text)
    except OrchestratorError:
        named = _visible(request).filter(Q(name=text) | Q(name__icontains=text)).order_by("-id")
        return named.filter(name=text).first() or named.first()


def _is_alone(job: Job, jobs: list[Job]) -> bool:
    return sum(other.short_id == job.short_id for other in jobs) <= 1


def _address(request: HttpRequest, ids: list[str]) -> str:
    kept = {name: request.GET[name][:40] for name in KEPT if request.GET.get(name)}
    return f"{reverse('compare')}?{urlencode({'jobs': ','.join(ids), **kept}, safe=',')}"


def _columns(request: HttpRequest, jobs: list[Job], baseline: int, letters: dict[Any, str]) -> list[Column]:
    ids = [job.short_id for job in jobs]
    slots, labels = colour_slots(jobs), _labels(jobs)
    return [
        {
            "job": job,
            "letter": letters[job.pk],
            "label": labels[at],
            "slot": slots[at],
            "colour": "" if slots[at] is None else f"colour-{slots[at]}",
            "is_baseline": at == baseline,
            "without": _address(request, [each for each in ids if each != job.short_id]),
            "code": _code_address(jobs[baseline], job),
        }
        for at, job in enumerate(jobs)
    ]


def _code_address(base: Job, job: Job) -> str:
    if job.bundle == base.bundle and job.environment_id == base.environment_id:
        return ""
    return f"{reverse('compare-code')}?{urlencode({'jobs': f'{base.short_id},{job.short_id}'}, safe=',')}"


def colour_slots(jobs: Sequence[Job]) -> list[int | None]:
    """Each job's own colour, from 1; who shares it with an earlier one gets a free colour, or none of the eight is left."""
    taken: dict[int, int | None] = {}
    slots: list[int | None] = [None] * len(jobs)
    for at, job in enumerate(jobs):
        if job.colour is not None and (own := job.colour % COLOURS + 1) not in taken:
            taken[own] = slots[at] = own
    free = [slot for slot in range(1, COLOURS + 1) if slot not in taken]
    for at, slot in enumerate(slots):
        if slot is None and free:
            slots[at] = free.pop(0)
    return slots


def _labels(jobs: Sequence[Job]) -> list[str]:
    """Names, short enough for a line's end; of equal ones with what tells them apart."""
    own = [_short(job.name) for job in jobs]
    told = plots.apart([job.arguments for job in jobs])
    return [
        name if own.count(name) == 1 else f"{name} {told[at] or f'#{job.short_id}'}"
        for at, (name, job) in enumerate(zip(own, jobs, strict=True))
    ]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 12]}…{name[-11:]}"


def _table(request: HttpRequest, jobs: list[Job], baseline: int) -> list[comparison.Row]:
    attempts = defaultdict(list)
    for attempt in Attempt.objects.filter(job__in=jobs).prefetch_related("leases"):
        attempts[attempt.job_id].append(attempt)
    return comparison.compare(
        jobs, attempts, baseline=baseline, reader_id=request.user.pk, now=timezone.now()
    )


def _share(text: str | None) -> float:
    """A smoothing between 0 and 0.99."""
    try:
        return min(0.99, max(0.0, float(text or 0)))
    except ValueError:
        return 0.0
