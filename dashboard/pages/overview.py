"""The Overview: free devices, who holds the others, and the reader's own jobs."""

from datetime import datetime
from typing import TypedDict
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.db.models import Case, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from berth.shared import words
from dashboard.pages.reader import signed_in
from dashboard.parts import lanes, rows, verdicts, wall
from orchestrator.live.readings import NowReadings, read_now
from orchestrator.models import FINAL_STATES, LEASED_STATES, Attempt, Device, Job, JobState, Pool, Role
from orchestrator.people import rights
from orchestrator.scheduler.capacity import Capacity, read_capacity
from orchestrator.scheduler.forecast.steps import PoolSteps, read_steps

MY_JOBS = 5
MOST_POOLS = 4  # with their start times


def overview(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    readings = read_now()
    mine = my_jobs(request.user, now)
    capacity = show_capacity(request.user, readings, now)
    tiles = wall_tiles(request.user, capacity, readings, now)
    timeline = lanes.show_lanes(request.GET.get("line", ""), now)
    context = {
        "nav": "overview",
        "readings": readings,
        "tiles": tiles,
        "wall_shape": wall.shape(readings, [tile["device"] for tile in tiles]),
        "mine": mine,
        "counts": counts(capacity, now),
        "offers": offers(signed_in(request), now),
        "host_words": wall.host_words(readings.host),
        "on_cpu": bool(tiles) and all(tile["device"].kind == "cpu" for tile in tiles),
        "timeline": timeline,
        "may_open": openable(request.user, timeline),
    }
    return render(request, "dashboard/overview.html", context)


class MyJob(rows.OwnRow):
    object: Job
    verdict: verdicts.Verdict


class Counts(TypedDict):
    """The box line's numbers."""

    devices: int
    free: str
    room: str
    running: int
    waiting: int
    next_start: str


def openable(user: AbstractBaseUser | AnonymousUser, timeline: lanes.TimelineView) -> set[UUID]:
    """The jobs of the timeline whose pages this reader may open."""
    shown = {part["job"].pk for lane in timeline["lanes"] for part in lane["parts"] if part["kind"] == "job"}
    return set(Job.objects.visible_to(user).filter(pk__in=shown).values_list("pk", flat=True))


def show_capacity(user: AbstractBaseUser | AnonymousUser, readings: NowReadings, now: datetime) -> Capacity:
    """What this reader could start now, the devices in the order of the wall."""
    devices = sorted(Device.objects.select_related("pool"), key=lambda device: device.place)
    return read_capacity(user, devices, readings, now)


def offers(user: User, now: datetime) -> list[PoolSteps]:
    """When jobs of this reader would start, in each pool that takes them."""
    if rights.role_of(user) == Role.VIEWER:
        return []
    pools = [pool for pool in Pool.objects.order_by("pk") if rights.may_submit(user, pool)]
    return read_steps(user, pools[:MOST_POOLS], now)


def wall_tiles(
    user: AbstractBaseUser | AnonymousUser, capacity: Capacity, readings: NowReadings, now: datetime
) -> list[wall.Tile]:
    """The tiles for this reader: links and numbers only for their own jobs."""
    held = {UUID(str(holder["job"])) for entry in readings.devices for holder in entry.get("holders", [])}
    visible = {
        str(job.pk): job for job in Job.objects.visible_to(user).filter(pk__in=held).select_related("owner")
    }
    own = {key: rows.own_row(job, [], now) for key, job in visible.items()}
    links = {key: reverse("job", args=[key]) for key in visible}
    started = {
        str(job_id): at
        for job_id, at in Attempt.objects.live().filter(job__in=held).values_list("job_id", "started_at")
    }
    return wall.tiles(readings, capacity, own, links, started)


def my_jobs(user: AbstractBaseUser | AnonymousUser, now: datetime) -> list[MyJob]:
    """The reader's newest jobs, unfinished ones first."""
    own = Job.objects.filter(owner_id=user.pk).select_related("owner", "pool")
    found = list(own.unfinished().order_by(_running_first(), "-id")[:MY_JOBS])
    if room := MY_JOBS - len(found):
        found += own.filter(state__in=FINAL_STATES).order_by("-id")[:room]
    labels = rows.device_labels([job.pk for job in found])
    found.sort(key=lambda job: (job.state not in LEASED_STATES, job.is_final))  # running jobs first
    judged = verdicts.judge(found, now)
    return [
        {**rows.own_row(job, labels[job.pk], now), "object": job, "verdict": judged[job.pk]} for job in found
    ]


def _running_first() -> Case:
    return Case(When(state__in=LEASED_STATES, then=0), default=1)


def counts(capacity: Capacity, now: datetime) -> Counts:
    unfinished = Job.objects.unfinished()
    waiting = unfinished.filter(state__in=[JobState.QUEUED, JobState.HELD, JobState.BACKOFF])
    first = (
        waiting.filter(state=JobState.QUEUED, start_earliest__isnull=False).order_by("start_earliest").first()
    )
    return {
        "devices": len(capacity.devices),
        "free": str(capacity.free),
        "room": capacity.rest,
        "running": unfinished.filter(
            state__in=[JobState.STARTING, JobState.RUNNING, JobState.STOPPING]
        ).count(),
        "waiting": waiting.count(),
        "next_start": words.start_range(first.start_earliest, first.start_latest, now) if first else "",
    }
