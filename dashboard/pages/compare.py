"""Jobs side by side; the address says which jobs, and how to show them."""

from collections import defaultdict
from typing import Any, TypedDict
from urllib.parse import urlencode

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from dashboard.parts import comparison, rows
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Attempt, Job
from orchestrator.models.jobs import JobQuerySet

MOST_JOBS = 24
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX"
SUGGESTED = 30
X_KINDS = ("step", "time", "relative")
KEPT = ("baseline", "x", "smooth", "log", "zoom", "all")


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
    baseline = next(
        (at for at, job in enumerate(jobs) if request.GET.get("baseline") in {job.short_id, str(job.pk)}), 0
    )
    context = {
        "nav": "compare",
        "columns": _columns(request, jobs, baseline),
        "table": _table(request, jobs, baseline) if jobs else [],
        "shows_all": bool(request.GET.get("all")),
        "unknown": unknown,
        "jobs": ",".join(job.short_id for job in jobs),
        "baseline": jobs[baseline].short_id if jobs else "",
        "x": request.GET.get("x") if request.GET.get("x") in X_KINDS else "step",
        "smooth": _share(request.GET.get("smooth")),
        "log": request.GET.get("log") == "1",
        "hidden": request.GET.get("hidden", "")[:MOST_JOBS],
        "suggestions": list(_visible(request).order_by("-id").values_list("name", flat=True)[:SUGGESTED]),
        "has_numbers": any(job.metric_seq for job in jobs),
        "most": MOST_JOBS,
        "data": [
            {"id": str(job.pk), "letter": LETTERS[at], "name": job.name, "final": job.is_final}
            for at, job in enumerate(jobs)
        ],
    }
    return render(request, "dashboard/compare.html", context)


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


class Column(TypedDict):
    """One job of the comparison."""

    job: Job
    letter: str
    colour: str
    is_baseline: bool
    without: str  # the address of the page without this job
    loss: tuple[str, float] | None


def _columns(request: HttpRequest, jobs: list[Job], baseline: int) -> list[Column]:
    ids = [job.short_id for job in jobs]
    return [
        {
            "job": job,
            "letter": LETTERS[at],
            "colour": f"colour-{at + 1}" if at < 8 else "",
            "is_baseline": at == baseline,
            "without": _address(request, [each for each in ids if each != job.short_id]),
            "loss": rows.main_loss(job.last_values),
        }
        for at, job in enumerate(jobs)
    ]


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
