"""Where in a log a step of a chart is: the cursor of the charts stands the log at that line."""

from functools import partial
from math import isfinite
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.pages.job import visible_job
from orchestrator.agent.telemetry.log_places import Moment, find_line
from orchestrator.api.http.connections import has_left_of
from orchestrator.api.resources.logs import find_log, read_in_turn
from orchestrator.exceptions import NotFound
from orchestrator.models import Attempt, Job
from orchestrator.sentences.errors import sentence_of
from orchestrator.store.metrics.step_times import time_of


@require_GET
def log_place(request: HttpRequest, job_id: UUID) -> JsonResponse:
    """The line of ``step``, or of ``time`` in seconds since 1970; null where the log tells neither."""
    job = visible_job(request, job_id)
    asked = {name: _number(request.GET.get(name, "")) for name in ("step", "time", "attempt", "rank")}
    try:
        number, folder = find_log(job, int(asked["attempt"] or 0) or None, int(asked["rank"] or 0))
    except NotFound as error:
        return JsonResponse({"detail": sentence_of(error)}, status=404)
    step = None if asked["step"] is None else int(asked["step"])
    rank = int(asked["rank"] or 0)
    moment = _moment(job, number, step, asked["time"])
    find = partial(find_line, folder.log(rank), folder.log_index(rank), step, moment, has_left_of(request))
    place = read_in_turn(find)
    return JsonResponse({"line": None} if place is None else {"line": place.line, "exact": place.exact})


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and 0 <= number < 2**53 else None


def _moment(job: Job, number: int, step: int | None, time_s: float | None) -> Moment | None:
    attempt = Attempt.objects.filter(job=job, number=number).first()
    if attempt is None or attempt.started_at is None:
        return None
    at_s = time_s if step is None else time_of(settings.HOME.job(job.pk).metrics, number, step)
    if at_s is None:
        return None
    ended = attempt.ended_at or timezone.now()
    return Moment(at_s, attempt.started_at.timestamp(), ended.timestamp())
