"""The page of sessions, and the way from Berth into one; starting and stopping go through the REST API."""

import re
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from dashboard.pages.job import visible_job
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Pool
from orchestrator.people import rights
from orchestrator.sentences.errors import said, sentence_of
from orchestrator.sessions import listing, passes
from orchestrator.sessions.activity import Sign
from orchestrator.sessions.addresses import address_of, port_problem

SIGNS = {
    Sign.DEVICE: ("Its devices compute", "its devices computed last"),
    Sign.KERNEL: ("A kernel computes", "a kernel computed last"),
    Sign.TERMINAL: ("A program runs in a terminal", "a program in a terminal ran last"),
    Sign.PROCESSOR: ("Its processes compute", "its processes computed last"),
    Sign.UNKNOWN: ("Not looked at yet", "nothing has computed"),
}
_DIGEST = re.compile(r"[0-9a-f]{64}")


@require_GET
def sessions(request: HttpRequest) -> HttpResponse:
    """The reader's sessions, and the form that starts one."""
    user = signed_in(request)
    rows = listing.sessions_of(user)
    context = {
        "nav": "sessions",
        "now": [
            (row, [_(text) for text in SIGNS[row.activity.sign]] if row.activity else None)
            for row in rows
            if not row.job.is_final
        ],
        "ended": [row for row in rows if row.job.is_final],
        "pools": [pool.name for pool in Pool.objects.order_by("name") if rights.may_submit(user, pool)],
        "shares_origin": not settings.ENVIRONMENT.sessions.own_origins,
        "has_port": settings.ENVIRONMENT.sessions.port > 0,
        "port_problem": said(port_problem(settings.HOME.services)),
    }
    return render(request, "dashboard/sessions.html", context)


@require_GET
def open_session(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Send the browser to the session's own address, which asks us for a ticket."""
    job = visible_job(request, job_id)
    try:
        passes.check_open(signed_in(request), job)
    except OrchestratorError as error:
        messages.error(request, sentence_of(error))
        return redirect("sessions")
    back = request.build_absolute_uri(reverse("session-ticket", args=[job_id]))
    address = address_of(job_id, request.build_absolute_uri("/"))
    return redirect(f"{address}.berth/begin?{urlencode({'back': passes.sign_return(back)})}")


@require_GET
def ticket(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Give the browser that the session's address marked a ticket, and send it back there."""
    job = visible_job(request, job_id)
    browser = request.GET.get("browser", "")
    if not _DIGEST.fullmatch(browser):
        raise Http404
    try:
        secret = passes.issue(signed_in(request), job, request.session.session_key or "", browser)
    except OrchestratorError as error:
        messages.error(request, sentence_of(error))
        return redirect("sessions")
    address = address_of(job_id, request.build_absolute_uri("/"))
    answer = redirect(f"{address}.berth/enter?{urlencode({'ticket': secret})}")
    answer["Referrer-Policy"] = "no-referrer"
    answer["Cache-Control"] = "no-store"
    return answer
