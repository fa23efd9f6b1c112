"""Reports: one self-contained HTML file of a job, a comparison, a sweep or a project; and the same for a link."""

from collections.abc import Callable, Collection
from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard.pages.job import LogTail, answer, log_tail, shown_plan
from dashboard.pages.reader import signed_in
from dashboard.parts import showing
from dashboard.parts.showing import Shown
from orchestrator.api.http import rate
from orchestrator.api.resources.job_filters import find_job
from orchestrator.api.resources.sweeps import find_sweep
from orchestrator.exceptions import NotFound, OrchestratorError
from orchestrator.models import Attempt, Job
from orchestrator.models.jobs import JobQuerySet
from orchestrator.people import audit
from orchestrator.people.secrets import quotable
from orchestrator.sentences.errors import sentence_of
from orchestrator.sharing import links, projects

# The file loads nothing and runs nothing, wherever it is opened.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-downloads allow-popups"
# A page behind a link reads itself again, and nothing else.
SHARED_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
ALL = frozenset(links.SECTIONS) - {"code"}  # for people with an account; they see the code on the job's page
MOST_LETTERS = 2_000  # of the ids in an address


@require_safe
def report(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """The job's curves, plan, attempts and history; with ``?download`` as a file to keep."""
    visible = Job.objects.visible_to(request.user).select_related("owner", "pool", "parent")
    return _as_file(request, _one(request, get_object_or_404(visible, pk=job_id), ALL))


@require_safe
def report_of(request: HttpRequest) -> HttpResponse:
    """The report of what ``jobs``, ``sweep`` or ``project`` name, with the sections that ``show`` names.

    ``?download`` makes it a file to keep.
    """
    try:
        shown = read_shown(request, request.GET)
    except OrchestratorError as error:
        return _over(request, error)
    return _as_file(request, _page(request, shown, address=lambda _job: ""))


@login_not_required
@require_safe
def shared(request: HttpRequest, text: str, job_id: UUID | None = None) -> HttpResponse:
    """What a link shows to anyone who opens it, with or without an account; with ``?download`` as a file to keep."""
    try:
        rate.shared_pages.take(audit.address_of(request))
        link = links.find(text)
        shown = Shown(links.jobs_of(link), frozenset(link.shows), link.sweep, link.project)
        if job_id is not None:
            shown = Shown(_only(shown, job_id), shown.shows)
        is_part = job_id is not None and (link.kind in {"compare", "sweep", "project"})
        keeps = "download" in request.GET
        page = _page(
            request,
            shown,
            address=lambda job: "" if keeps else reverse("shared-job", args=[text, job.pk]),
            back=reverse("shared", args=[text]) if is_part and not keeps else "",
            is_live=not keeps,
        )
    except OrchestratorError as error:
        return _sealed(_over(request, error))
    return _sealed(_as_file(request, page, policy=SHARED_POLICY))


def read_shown(request: HttpRequest, given: QueryDict) -> Shown:
    """What the parameters of an address name.

    Raises:
        NotFound: the reader sees no such thing, or nothing is named.
    """
    user = signed_in(request)
    chosen = frozenset(given.getlist("show")) & frozenset(links.SECTIONS) or frozenset(links.USUAL_SECTIONS)
    if name := given.get("project", "")[:64]:
        project = projects.find(user, name)
        found = Job.objects.visible_to(user).filter(project=project)
        return Shown(found, chosen, project=project)
    if text := given.get("sweep", "")[:64]:
        sweep = find_sweep(user, text)
        return Shown(Job.objects.visible_to(user).filter(trial__sweep=sweep), chosen, sweep=sweep)
    parts = [part for part in given.get("jobs", "")[:MOST_LETTERS].split(",") if part.strip()]
    ids = [find_job(Job.objects.all(), user, part.strip()).pk for part in parts[: links.MOST_JOBS]]
    if not ids:
        raise NotFound("Name what to show: jobs, a sweep or a project.")
    return Shown(Job.objects.filter(pk__in=ids), chosen)


def _only(shown: Shown, job_id: UUID) -> JobQuerySet:
    """One of the jobs that a link shows.

    Raises:
        NotFound: it does not show this one.
    """
    found = shown.jobs.filter(pk=job_id)
    if not found.exists():
        raise NotFound("This link does not show this job.")
    return found


def _page(
    request: HttpRequest,
    shown: Shown,
    *,
    address: Callable[[Job], str],
    back: str = "",
    is_live: bool = False,
) -> HttpResponse:
    """A page of one job, or of several."""
    is_one = shown.sweep is None and shown.project is None and shown.jobs.count() == 1
    if is_one:
        job = shown.jobs.select_related("owner", "pool", "parent").get()
        return _one(request, job, shown.shows, back=back, is_live=is_live and not job.is_final)
    context = showing.several_jobs(shown, address)
    return render(request, "dashboard/report_many.html", context | {"script": is_live})


def _one(
    request: HttpRequest, job: Job, shows: Collection[str], *, back: str = "", is_live: bool = False
) -> HttpResponse:
    attempts = list(job.attempts.prefetch_related("leases__device").order_by("number"))
    for attempt in attempts:
        if attempt.log_tail:  # stored as printed until 2026-11-28
            attempt.log_tail = quotable(job, attempt, attempt.log_tail)
    failed = answer(job, attempts[::-1])
    context = showing.one_job(job, shows) | {
        "attempts": attempts,
        "answer": failed,
        "plan": shown_plan(attempts[::-1]) if "history" in shows else None,
        "log": _log(job, attempts[::-1], failed["rank"] if failed else None) if "log" in shows else None,
        "back": back,
        "script": is_live,
    }
    return render(request, "dashboard/report.html", context)


def _log(job: Job, attempts: list[Attempt], rank: int | None) -> LogTail | None:
    """The end of the log as a file or a link may show it to strangers."""
    return log_tail(job, attempts, rank, quotes=True)


def _as_file(request: HttpRequest, page: HttpResponse, *, policy: str = POLICY) -> HttpResponse:
    page.headers["Content-Security-Policy"] = policy
    if "download" in request.GET:
        match = request.resolver_match
        job_id = match.kwargs.get("job_id") if match else None
        name = f"berth-{str(job_id)[-8:]}" if job_id else "berth-report"
        page.headers["Content-Disposition"] = f'attachment; filename="{name}.html"'
    return page


def _over(request: HttpRequest, error: OrchestratorError) -> HttpResponse:
    context = {"sentence": sentence_of(error), "title": _("Nothing to see here")}
    return render(request, "dashboard/shared_over.html", context, status=error.status)


def _sealed(page: HttpResponse) -> HttpResponse:
    """Keep a shared page out of caches, search engines and other sites' logs."""
    page.headers["Cache-Control"] = "no-store"
    page.headers["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    page.headers["Referrer-Policy"] = "no-referrer"
    return page
