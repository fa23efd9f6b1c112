"""Showing something to others: who sees a job, links that need no account, and a report as one file."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard.pages import rest_form
from dashboard.pages.reader import DAY_S, signed_in
from dashboard.pages.report import read_shown
from dashboard.parts.showing import Shown
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Job, ProjectMember, ShareLink, Visibility
from orchestrator.people import rights
from orchestrator.sentences.errors import said, sentence_of
from orchestrator.sharing import links, projects

LIVES = {DAY_S: "1 day", 7 * DAY_S: "7 days", 30 * DAY_S: "30 days", 90 * DAY_S: "90 days"}
NAMED = ("jobs", "sweep", "project")  # parameters that say what is shown
MOST_LINKS = 200


@require_http_methods(["GET", "HEAD", "POST"])
def share(request: HttpRequest) -> HttpResponse:
    """The page to share what ``jobs``, ``sweep`` or ``project`` name, and the reader's links; POST makes one."""
    given = request.POST if request.method == "POST" else request.GET
    named = {name: given[name][:2000] for name in NAMED if given.get(name)}
    shown, error, status = None, "", 200
    if named:
        try:
            shown = read_shown(request, given)
        except OrchestratorError as problem:
            error, status = sentence_of(problem), problem.status
    url = ""
    if "download" in request.POST:
        return redirect(f"{reverse('report-of')}?{_address_of(named, given.getlist('show'))}")
    if request.method == "POST" and not error:
        url, error, status = _make(request, shown)
    context = {
        "nav": "share",
        "named": named,
        "shown": shown,
        "url": url,
        "error": error,
        "query": _address_of(named, []),
        "sections": {name: _(text) for name, text in links.SECTIONS.items()},
        "chosen": given.getlist("show") or list(links.USUAL_SECTIONS),
        "lives": {seconds: _(text) for seconds, text in LIVES.items()},
        "life": given.get("expires_in_s:number", str(7 * DAY_S)),
        "links": _links(request),
        **_job_context(request, shown),
    }
    page = render(request, "dashboard/share.html", context, status=status)
    if url:
        page["Cache-Control"] = "no-store"  # the only time the link is shown
    return page


def _address_of(named: dict[str, str], shows: list[str]) -> str:
    """The parameters of the file: what it shows, and which sections."""
    return urlencode([*named.items(), *(("show", name) for name in shows[:20]), ("download", "1")])


def _make(request: HttpRequest, shown: Shown | None) -> tuple[str, str, int]:
    """The address of a new link, or the reason why it was not made, and the status of the answer."""
    if shown is None:
        return "", _("Name what to show: jobs, a sweep or a project."), 400
    form = rest_form.read_fields(request.POST)
    body: dict[str, Any] = {
        "kind": _kind(shown),
        "shows": request.POST.getlist("show"),
        "note": form.get("note", ""),
        "expires_in_s": form.get("expires_in_s"),
    }
    if shown.project is not None:
        body["project"] = shown.project.pk
    elif shown.sweep is not None:
        body["sweep"] = str(shown.sweep.pk)
    else:
        body["jobs"] = [str(pk) for pk in shown.jobs.values_list("pk", flat=True)]
    answer = rest_form.call(request, "POST", "/api/v1/links", body)
    if answer.status_code >= 400:
        return "", rest_form.problem(answer), answer.status_code
    return rest_form.told(answer)["url"], "", 200


def _kind(shown: Shown) -> str:
    if shown.project is not None:
        return "project"
    if shown.sweep is not None:
        return "sweep"
    return "job" if shown.jobs.count() == 1 else "compare"


def _job_context(request: HttpRequest, shown: Shown | None) -> dict[str, Any]:
    """What the page offers for one job: its project and who sees it."""
    if shown is None:
        return {"job": None, "may_share": False}
    user = signed_in(request)
    if shown.project is not None:
        return {"job": None, "may_share": projects.manages(user, shown.project)}
    if shown.sweep is not None:
        return {"job": None, "may_share": rights.may_steer(user, shown.sweep)}
    found = list(shown.jobs.select_related("owner")[: links.MOST_JOBS])
    job = found[0] if len(found) == 1 else None
    return {
        "job": job,
        "jobs": found,
        "may_share": all(rights.may_steer(user, each) for each in found),
        "projects": _projects_of(job) if job else [],
        "visibilities": [(value, _(text)) for value, text in Visibility.choices],
    }


def _projects_of(job: Job) -> list[str]:
    """The projects that a job may be in: its owner's."""
    own = ProjectMember.objects.filter(user=job.owner_id).values_list("project_id", flat=True)
    return sorted({*own, *([job.project_id] if job.project_id else [])})


def _links(request: HttpRequest) -> list[tuple[ShareLink, str, str]]:
    """The reader's links, each with what it shows and the names of its sections."""
    found = ShareLink.objects.open().filter(owner=signed_in(request)).select_related("sweep", "project")
    return [
        (link, said(links.title_of(link)), ", ".join(_(name) for name in link.shows))
        for link in found.prefetch_related("jobs")[:MOST_LINKS]
    ]
