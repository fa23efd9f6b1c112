"""The report of a job: one self-contained HTML file."""

import shlex
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_GET

from berth.job_fields import started_words
from dashboard.pages.job import answer, shown_plan
from dashboard.parts import report as drawing
from dashboard.parts import rows
from orchestrator.models import Checkpoint, Job, JobEvent

MOST_EVENTS = 200
# The file loads nothing and runs nothing, wherever it is opened.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-downloads allow-popups"


@require_GET
def report(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """The job's curves, plan, attempts and history; with ``?download`` as a file to keep."""
    visible = Job.objects.visible_to(request.user).select_related("owner", "pool", "parent")
    job = get_object_or_404(visible, pk=job_id)
    now = timezone.now()
    attempts = list(job.attempts.prefetch_related("leases__device").order_by("number"))
    folder = settings.HOME.job(job.pk).metrics
    context = {
        "job": job,
        "row": rows.detail_row(job, rows.device_labels([job.pk])[job.pk], now),
        "now": now,
        "attempts": attempts,
        "answer": answer(job, attempts[::-1]),
        "plan": shown_plan(attempts[::-1]),
        "curves": drawing.draw_curves(folder, job.metric_seq) if job.metric_seq else [],
        "size": {"width": drawing.WIDTH, "height": drawing.HEIGHT, "left": drawing.LEFT},
        "checkpoints": Checkpoint.objects.filter(job=job).order_by("created_at"),
        "events": JobEvent.objects.filter(job=job).order_by("number")[:MOST_EVENTS],
        "command": shlex.join(started_words(job.spec_fields)),
    }
    page = render(request, "dashboard/report.html", context)
    page.headers["Content-Security-Policy"] = POLICY
    if "download" in request.GET:
        page.headers["Content-Disposition"] = f'attachment; filename="berth-{job.short_id}.html"'
    return page
