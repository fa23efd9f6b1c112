"""All jobs that the reader may see, filtered by the address."""

from typing import TypedDict
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from pydantic import ValidationError

from dashboard.pages.reader import signed_in
from dashboard.parts import rows
from orchestrator.api.resources.job_filters import JobFilters, find_job, find_jobs
from orchestrator.exceptions import Malformed, OrchestratorError
from orchestrator.models import Job, JobState, Pool
from orchestrator.models.jobs import JobQuerySet

PAGE = 50
FILTERS = ("q", "state", "owner", "tag", "pool")


def jobs(request: HttpRequest) -> HttpResponse:
    """Filters ``q``, ``state``, ``owner``, ``tag``, ``pool``; ``before`` and ``after`` are ids of jobs."""
    now = timezone.now()
    visible = Job.objects.visible_to(request.user)
    found, links = page_of(filtered(visible, request.GET).select_related("owner", "pool"), request.GET)
    labels = rows.device_labels([job.pk for job in found if rows.holds_devices(job)])
    chosen = {name: request.GET.get(name, "")[:200] for name in FILTERS}
    context = {
        "nav": "jobs",
        "rows": [{**rows.own_row(job, labels.get(job.pk, []), now), "object": job} for job in found],
        "chosen": chosen,
        "any_filter": any(chosen.values()),
        "states": JobState.values,
        "pools": list(Pool.objects.values_list("name", flat=True)),
        **links,
    }
    template = "dashboard/_jobs_table.html" if request.headers.get("HX-Request") else "dashboard/jobs.html"
    return render(request, template, context)


def job_by_part(request: HttpRequest, part: str) -> HttpResponse:
    """Redirect to the job whose id has this part; 404 unless exactly one job matches."""
    try:
        found = find_job(Job.objects.all(), signed_in(request), part)
    except OrchestratorError as error:
        raise Http404 from error
    return redirect("job", job_id=found.pk)


def filtered(found: JobQuerySet, wanted: QueryDict) -> QuerySet[Job]:
    """Apply the address's filters by the API's rules; an invalid filter matches nothing."""
    given = {name: wanted[name] for name in FILTERS if wanted.get(name)}
    try:
        return find_jobs(found, JobFilters.model_validate(given))[0]
    except (ValidationError, Malformed):
        return found.none()


class PageLinks(TypedDict):
    newer: str
    older: str
    first_page: bool


def page_of(found: QuerySet[Job], wanted: QueryDict) -> tuple[list[Job], PageLinks]:
    """One page of jobs, newest first, and links to the pages before and after."""
    before, after = _uuid(wanted.get("before")), _uuid(wanted.get("after"))
    if after:
        page = list(found.filter(pk__gt=after).order_by("id")[: PAGE + 1])
        more_newer, more_older = len(page) > PAGE, True
        page = list(reversed(page[:PAGE]))
    else:
        older = found.filter(pk__lt=before) if before else found
        page = list(older.order_by("-id")[: PAGE + 1])
        more_newer, more_older = before is not None, len(page) > PAGE
        page = page[:PAGE]
    kept = {name: wanted[name] for name in FILTERS if wanted.get(name)}
    links: PageLinks = {
        "newer": "?" + urlencode({**kept, "after": page[0].pk}) if page and more_newer else "",
        "older": "?" + urlencode({**kept, "before": page[-1].pk}) if page and more_older else "",
        "first_page": not before and not after,
    }
    return page, links


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
