"""The Queue: who waits and why, who runs and until when, what ended lately."""

from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from dashboard.pages import overview
from dashboard.pages.reader import signed_in
from dashboard.parts import rows
from orchestrator.api.finding import find_job
from orchestrator.exceptions import OrchestratorError
from orchestrator.live.readings import read_now
from orchestrator.models import FINAL_STATES, LEASED_STATES, WAITING_STATES, Job, JobState, Pool
from orchestrator.models.people import operated_pools
from orchestrator.people import audit
from orchestrator.scheduler import owner_order

MOST_WAITING = 200
MOST_STARTED = 2_000  # of a day, for the median wait
DAY = timedelta(days=1)
LATELY = 10


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
    """How many devices are free, for who finds nothing waiting; empty where there are none."""
    tiles = overview.wall_tiles(user, read_now(), now)
    return f"{overview.room(tiles)}." if tiles else ""


def median_wait_s(jobs: QuerySet[Job], now: datetime) -> float | None:
    """Of those that first started in the last 24 hours, from their submit; None where none did."""
    started = jobs.filter(first_started_at__gte=now - DAY).order_by("-first_started_at")
    times = started.values_list("submitted_at", "first_started_at")[:MOST_STARTED]
    waits_s = [(first - submitted).total_seconds() for submitted, first in times if first is not None]
    return median(waits_s) if waits_s else None


def shown(jobs: list[Job], user: AbstractBaseUser | AnonymousUser, now: datetime) -> list[dict[str, Any]]:
    """The jobs as this reader may see them; ``url`` only where they may open the page."""
    labels = rows.device_labels([job.pk for job in jobs if rows.holds_devices(job)])
    pools = operated_pools(user)
    return [
        {
            **rows.public_row(job, labels.get(job.pk, []), now),
            "object": job,
            "may_open": pools is None or job.owner_id == user.pk or job.pool_id in pools,
        }
        for job in jobs
    ]


def with_neighbours(waiting: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each waiting job that the reader may move, with the ids of the jobs before and behind which it can go.

    Jobs in line and jobs that may not start yet stand apart, and move among their own kind.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
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
    """Without JavaScript: put a waiting job before or behind another of its owner."""
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("owner"), pk=job_id)
    behind = "behind" in request.POST
    try:
        other = find_job(Job.objects.all(), user, request.POST.get("behind" if behind else "before", ""))
        owner_order.move(user, job, other, behind=behind, address=audit.address_of(request))
    except OrchestratorError as error:
        messages.error(request, str(error))
    return redirect("queue")
