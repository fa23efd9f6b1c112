"""Pools and their devices; operators' changes go through the REST API."""

from typing import TypedDict

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from dashboard.parts import device_day, wall
from orchestrator.jobs import claim_accuracy
from orchestrator.live.readings import NowReadings, read_now
from orchestrator.models import (
    AdminState,
    Booking,
    Device,
    Health,
    Job,
    Lease,
    Lender,
    Pilot,
    Pool,
    PoolRight,
    Quota,
    Right,
    Role,
)
from orchestrator.people import rights
from orchestrator.scheduler.capacity import read_capacity
from orchestrator.scheduler.passes.neighbours import beside_now

MOST_LEASES = 30
MOST_BOOKINGS = 20
OPERATES = frozenset({Role.OPERATOR, Role.ADMIN})


@require_GET
def list_pools(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    readings = read_now()
    devices = list(Device.objects.select_related("pool"))
    tiles = {tile["device"].pk: tile for tile in _tiles(user, devices, readings)}
    is_admin = rights.role_of(user) == Role.ADMIN
    pools = [
        _pool(pool, devices, tiles, rights.right_in(user, pool.pk)) for pool in Pool.objects.order_by("name")
    ]
    quotas = Quota.objects.select_related("user", "pool")
    context = {
        "nav": "pools",
        "pools": pools,
        "names": [entry["pool"].name for entry in pools],
        "movable": sum(entry["may_operate"] for entry in pools) > 1,
        "is_admin": is_admin,
        "quotas": list(quotas) if is_admin else [],
        "states": AdminState.values,
        "rights": Right.choices,
    }
    return render(request, "dashboard/pools.html", context)


class PoolEntry(TypedDict):
    """A pool with what this reader may see and change of it."""

    pool: Pool
    tiles: list[wall.Tile]
    may_operate: bool
    rights: list[PoolRight]
    bookings: list[Booking]
    lender: Lender | None
    pilots: list[Pilot]
    claims: list[claim_accuracy.ClaimAccuracy]


def _tiles(user: User, devices: list[Device], readings: NowReadings) -> list[wall.Tile]:
    return wall.tiles(readings, read_capacity(user, devices, readings, timezone.now()), {}, {}, {})


def _pool(pool: Pool, devices: list[Device], tiles: dict[str, wall.Tile], right: Role) -> PoolEntry:
    may_operate = right in OPERATES
    # Devices that a cluster took back are not missed.
    lender = Lender.objects.filter(pool=pool).first()
    return {
        "pool": pool,
        "tiles": [
            tiles[device.pk]
            for device in devices
            if device.pool_id == pool.pk and not (lender and device.health == Health.MISSING)
        ],
        "may_operate": may_operate,
        "rights": list(PoolRight.objects.filter(pool=pool).select_related("user")) if may_operate else [],
        "lender": lender,
        "pilots": list(pool.pilots.open()),
        "bookings": list(Booking.objects.filter(pool=pool).order_by("-pk")[:MOST_BOOKINGS]),
        "claims": claim_accuracy.accuracies(pool.pk),
    }


@require_GET
def device(request: HttpRequest, device_id: str) -> HttpResponse:
    """One device: its readings, and its present and past jobs."""
    found = get_object_or_404(Device.objects.select_related("pool"), pk=device_id)
    readings = read_now()
    leases = list(
        Lease.objects.filter(device=found)
        .select_related("attempt__job__owner", "attempt__job__pool")
        .order_by("-started_at")[:MOST_LEASES]
    )
    visible = set(
        Job.objects.visible_to(request.user)
        .filter(pk__in={lease.attempt.job_id for lease in leases})
        .values_list("pk", flat=True)
    )
    day = device_day.day_until(timezone.now())
    held = device_day.held(leases, day)
    context = {
        "nav": "pools",
        "device": found,
        "tile": _tiles(signed_in(request), [found], readings)[0],
        "leases": [
            {"lease": lease, "job": lease.attempt.job, "may_open": lease.attempt.job_id in visible}
            for lease in leases
        ],
        "may_operate": rights.right_in(signed_in(request), found.pool_id) in OPERATES,
        "states": AdminState.values,
        "charts": device_day.draw_charts(found, day),
        "held": held,
        "held_px": (max((one.row for one in held), default=0) + 1) * device_day.ROW_PX,
        "visible": visible,
        "troubles": device_day.troubles(found, day),
        "beside": beside_now(device_id=found.pk),
        "processes": device_day.process_rows(found, readings.device(found.pk)),
        "ticks": day.ticks(),
    }
    return render(request, "dashboard/device.html", context)
