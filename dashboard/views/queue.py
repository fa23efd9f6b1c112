"""The Queue: who waits and why, who runs and until when, what ended lately."""

from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from dashboard import rows
from orchestrator.models import FINAL_STATES, LEASED_STATES, WAITING_STATES, Device, Job, Pool
from orchestrator.models.people import operated_pools

MOST_WAITING = 200
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
        "waiting": shown(waiting, request.user, now),
        "waiting_count": waits.count() if len(waiting) == MOST_WAITING else len(waiting),
        "leased": shown(leased, request.user, now),
        "ended": shown(ended, request.user, now),
        "pools": list(Pool.objects.values_list("name", flat=True)),
        "pool": pool,
        "mine": bool(request.GET.get("mine")),
        "device_count": Device.objects.count(),
    }
    return render(request, "dashboard/queue.html", context)


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
