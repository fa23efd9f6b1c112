"""The Queue: waiting jobs with reasons, running jobs with expected ends, recently ended jobs."""

from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from dashboard.pages import overview
from dashboard.pages.reader import signed_in
from dashboard.parts import plan_changes, rows
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import OrchestratorError
from orchestrator.live.readings import read_now
from orchestrator.models import FINAL_STATES, LEASED_STATES, WAITING_STATES, Job, JobState, Pool
from orchestrator.models.people import operated_pools
from orchestrator.people import audit, rights
from orchestrator.scheduler import owner_order, passes
from orchestrator.scheduler.forecast.planning import look_ahead
from orchestrator.sentences.errors import sentence_of

MOST_WAITING = 200
MOST_STARTED = 2_000  # in a day, for the median wait
DAY = timedelta(days=1)
LATELY = 10
MOST_NAMED = 5


def queue(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    pool = request.GET.get("pool", "")[:64]
    jobs = Job.objects.select_related("owner", "pool")
    if pool:
        jobs = jobs.filter(pool_id=pool)
    if request.GET.get("mine"):
        jobs = jobs.filter(owner_id=request.user.pk)
    waits = jobs.filter(state__in=WAITING_STATES)
    waiting = rows.first_in_order(waits, MOST_WAITING)
    leased = list(jobs.filter(state__in=LEASED_STATES).order_by("first_started_at", "id")[:MOST_WAITING])
    ended = list(jobs.filter(state__in=FINAL_STATES).order_by("-ended_at")[:LATELY])
    context = {
        "nav": "queue",
        "waiting": with_neighbours(shown(waiting, request.user, now)),
        "waiting_count": waits.count() if len(waiting) == MOST_WAITING else len(waiting),
        "leased": shown(leased, request.user, now),
        "ended": shown(ended, request.user, now),
        "pools": list(Pool.objects.values_list("name", flat=True)),
        "pool": pool,
        "median_wait_s": median_wait_s(jobs, now),
        "mine": bool(request.GET.get("mine")),
        "free": "" if waiting else free_now(request.user, now),
    }
    return render(request, "dashboard/queue.html", context)


def free_now(user: AbstractBaseUser | AnonymousUser, now: datetime) -> str:
    """The free devices in words, for an empty queue; empty if the server has no devices."""
    capacity = overview.show_capacity(user, read_now(), now)
    return f"{capacity.sentence}." if capacity.devices else ""


def median_wait_s(jobs: QuerySet[Job], now: datetime) -> float | None:
    """Median wait of jobs first started in the last 24 hours; None if none started."""
    started = jobs.filter(first_started_at__gte=now - DAY).order_by("-first_started_at")
    times = started.values_list("submitted_at", "first_started_at")[:MOST_STARTED]
    waits_s = [(first - submitted).total_seconds() for submitted, first in times if first is not None]
    return median(waits_s) if waits_s else None


class QueueRow(rows.PublicRow):
    """A job of the Queue; a movable one has its group and its neighbours in the group."""

    object: Job
    may_open: bool
    group: str  # empty: the reader may not move it
    next: UUID | None
    previous: UUID | None


def shown(jobs: list[Job], user: AbstractBaseUser | AnonymousUser, now: datetime) -> list[QueueRow]:
    """The jobs as this reader may see them."""
    labels = rows.device_labels([job.pk for job in jobs if rows.holds_devices(job)])
    pools = operated_pools(user)
    return [
        QueueRow(
            **rows.public_row(job, labels.get(job.pk, []), now),
            object=job,
            may_open=pools is None or job.owner_id == user.pk or job.pool_id in pools,
            group="",
            next=None,
            previous=None,
        )
        for job in jobs
    ]


def with_neighbours(waiting: list[QueueRow]) -> list[QueueRow]:
    """Add to each movable waiting job the ids of the jobs that it can move before or behind.

    Jobs in line and jobs that may not start yet are separate groups; a job moves within its own.
    """
    groups: dict[str, list[QueueRow]] = {}
    for row in waiting:
        job = row["object"]
        if row["may_open"] and job.state == JobState.QUEUED:
            groups.setdefault(f"{job.owner_id} {job.priority} {job.pool_id} {rows.turn(job)}", []).append(row)
    for name, group in groups.items():
        for ahead, behind in pairwise(group):
            ahead["group"] = behind["group"] = name
            ahead["next"], behind["previous"] = behind["object"].pk, ahead["object"].pk
    return waiting


@require_POST
def move(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Without JavaScript: move a waiting job before or behind another of the same owner."""
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("owner"), pk=job_id)
    behind = "behind" in request.POST
    try:
        other = find_job(Job.objects.all(), user, request.POST.get("behind" if behind else "before", ""))
        owner_order.move(user, job, other, behind=behind, address=audit.address_of(request))
    except OrchestratorError as error:
        messages.error(request, sentence_of(error))
    return redirect("queue")


@require_GET
def explain(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Why one job waits: what would start it now, who is ahead, how far to trust the estimate."""
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("owner", "pool"), pk=job_id)
    blocking = Job.objects.filter(pk__in=[each for each in job.wait_blocked_by if _is_id(each)])
    context = {
        "job": job,
        "changes": plan_changes.told(look_ahead(job, user).search.changes),
        "blocking": [
            {"job": each, "mine": each.owner_id == user.pk}
            for each in blocking.select_related("owner")[:MOST_NAMED]
        ],
        "calibration": passes.calibration(),
        "may_steer": rights.may_steer(user, job),
    }
    return render(request, "dashboard/_explain.html", context)


def _is_id(text: object) -> bool:
    try:
        UUID(str(text))
    except ValueError:
        return False
    return True
