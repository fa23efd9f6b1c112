"""A file that a job wrote: its preview, and the link that fetches it."""

import os
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.pages.job import visible_job
from dashboard.parts.previews import read_preview
from dashboard.parts.result_files import shown_file
from orchestrator.exceptions import NotFound
from orchestrator.jobs import results

PLACES: dict[str, results.Place] = {"output": "output", "work": "work"}


@require_GET
def job_file(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Show the beginning of a file; its bytes are never a page of their own."""
    job = visible_job(request, job_id)
    path = request.GET.get("path", "")
    try:
        place, file = results.open_result(job, path, PLACES.get(request.GET.get("folder", "")))
    except NotFound as error:
        raise Http404 from error
    with file:
        size_bytes = os.fstat(file.fileno()).st_size
        preview = read_preview(path, file, size_bytes)
    context = {
        "nav": "jobs",
        "job": job,
        "file": shown_file(job, place, path, size_bytes),
        "preview": preview,
    }
    return render(request, "dashboard/job_file.html", context)
