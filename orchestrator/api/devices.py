"""Devices, with what they show now and who holds them."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

from django.conf import settings
from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.auth import OPERATORS, ApiRequest
from orchestrator.api.moments import Moment
from orchestrator.api.paging import Page, Paging, page
from orchestrator.api.schemas import DeviceChanges, DeviceOut, HistoryOut
from orchestrator.exceptions import Conflict, Impossible, Malformed
from orchestrator.live import readings, wakeups
from orchestrator.models import Device, Lease, Pool
from orchestrator.people import audit, rights
from orchestrator.scheduler import availability
from orchestrator.store.device_history import DeviceHistory

router = Router()

HOUR_S = 3600.0


class DeviceFilters(Paging):
    pool: str | None = None


class HistoryWindow(BaseModel):
    start: Moment | None = Field(
        None, alias="from", description="RFC 3339, or seconds since 1970; default: an hour before the end"
    )
    end: Moment | None = Field(None, alias="to", description="RFC 3339, or seconds since 1970; default: now")
    max_points: Annotated[int, Field(ge=1, le=5000)] = 500


@router.get("", response=Page[DeviceOut])
def list_devices(request: ApiRequest, filters: Query[DeviceFilters]) -> object:
    """Devices in the order of their indices; name and owner of what runs on them are for everybody."""
    rows = _rows()
    if filters.pool is not None:
        rows = rows.filter(pool=filters.pool)
    now = readings.read_now()
    reader = availability.Reader(request.user, timezone.now())
    return page(
        request, rows, filters, show=lambda device: show_device(device, now, reader), ordering="index"
    )


@router.get("/{device_id}", response=DeviceOut)
def get_device(request: ApiRequest, device_id: str) -> object:
    return _show_one(request, get_object_or_404(_rows(), pk=device_id))


@router.patch("/{device_id}", response=DeviceOut, auth=OPERATORS)
def change_device(request: ApiRequest, device_id: str, body: DeviceChanges) -> object:
    """Enable, drain (running jobs go on, nothing new starts) or disable a device; or move it to another pool."""
    device = get_object_or_404(_rows(), pk=device_id)
    rights.check_operate(request.user, device.pool_id)
    if body.state is None and body.pool is None:
        raise Malformed(
            "Nothing to change was given; these can be: state, pool.",
            fields={"state": ["give a state, or a pool to move to"]},
        )
    address = audit.address_of(request)
    with transaction.atomic():
        if body.pool is not None and body.pool != device.pool_id:
            _move(request, device, body.pool, address)
        if body.state is not None:
            was, device.admin_state = device.admin_state, body.state
            device.save(update_fields=["admin_state"])
            said = f"{device.label}: {was} -> {body.state}."
            audit.record(request.user, "device.state", f"device {device.pk}", said, address=address)
        wakeups.schedule()
        wakeups.publish("devices")
    return _show_one(request, device)


def _move(request: ApiRequest, device: Device, pool_id: str, address: str) -> None:
    """To another pool; the jobs of a pool run on its devices, so one that is held stays until they ended."""
    pool = Pool.objects.filter(pk=pool_id).first()
    if pool is None:
        raise Impossible(f"There is no pool {pool_id[:64]!r}.", fields={"pool": ["unknown pool"]})
    rights.check_operate(request.user, pool.pk)
    if Lease.objects.active().filter(device=device).exists():
        raise Conflict(f"{device.label} holds a job; drain it, and move it when the job has ended.")
    said = f"{device.label}: pool {device.pool_id} -> {pool.pk}."
    device.pool = pool
    device.save(update_fields=["pool"])
    audit.record(request.user, "device.pool", f"device {device.pk}", said, address=address)


@router.get("/{device_id}/history", response=HistoryOut, by_alias=True)
def read_device_history(request: ApiRequest, device_id: str, window: Query[HistoryWindow]) -> object:
    """Memory, utilisation, temperature and power over time; x is seconds since 1970."""
    device = get_object_or_404(Device, pk=device_id)
    end_s = time.time() if window.end is None else window.end
    start_s = end_s - HOUR_S if window.start is None else window.start
    found = DeviceHistory(settings.HOME.device_history).read(device.pk, start_s, end_s, window.max_points)
    return {
        "series": {name: each.as_json() for name, each in found.items()},
        "from": datetime.fromtimestamp(start_s, tz=UTC),
        "to": datetime.fromtimestamp(end_s, tz=UTC),
    }


def _show_one(request: ApiRequest, device: Device) -> dict[str, Any]:
    return show_device(device, readings.read_now(), availability.Reader(request.user, timezone.now()))


def show_device(device: Device, now: readings.NowReadings, reader: availability.Reader) -> dict[str, Any]:
    holders = _holders(device.leases.all())
    standing = reader.standing(device, held=bool(holders), entry=now.device(device.pk))
    return {
        "id": device.pk,
        "index": device.index,
        "label": device.label,
        "name": device.name,
        "kind": device.kind,
        "pool": device.pool_id,
        "node": device.node,
        "memory_bytes": device.memory_bytes,
        "state": device.admin_state,
        "health": device.health,
        "health_reason": device.health_reason,
        "usable": device.usable,
        "numa_node": device.numa_node,
        "nvlink": device.nvlink,
        "mig_parent": device.mig_parent or None,
        "mig_profile": device.mig_profile or None,
        "driver": device.driver or None,
        "reading": _reading(now.device(device.pk), now.taken_at),
        "holders": holders,
        "availability": _availability(standing),
    }


def _availability(standing: availability.Standing) -> dict[str, Any]:
    keep = standing.keep
    job = keep.job if keep else None
    return {
        "state": standing.state,
        "sentence": standing.sentence,
        "kept_for_job": job and {"id": job.pk, "name": job.name, "owner": job.owner.get_username()},
        "kept_for_booking": keep.booking.name if keep and keep.booking else None,
        "start_earliest": job and job.start_earliest,
        "start_latest": job and job.start_latest,
        "open_to_jobs_under_s": keep and keep.shorter_than_s,
        "open_to_pausable_jobs": bool(keep and keep.pausable),
    }


def _rows() -> QuerySet[Device]:
    active = Lease.objects.active().select_related("attempt__job__owner").order_by("rank")
    return Device.objects.select_related("pool").prefetch_related(Prefetch("leases", queryset=active))


def _reading(shown: dict[str, Any] | None, taken_at: float) -> dict[str, Any] | None:
    if shown is None:
        return None
    age_s = datetime.now(tz=UTC).timestamp() - taken_at
    return {
        **{name: shown.get(name) for name in ("utilization_percent", "temperature_c", "power_w")},
        "taken_at": datetime.fromtimestamp(taken_at, tz=UTC),
        "used_bytes": shown["used_bytes"],
        "total_bytes": shown["total_bytes"],
        "foreign_bytes": shown.get("foreign_bytes", 0),
        "stale": bool(shown.get("stale")) or age_s > readings.STALE_AFTER_S,
        "processes": shown.get("processes", []),
    }


def _holders(leases: Iterable[Lease]) -> list[dict[str, Any]]:
    return [
        {
            "job": lease.attempt.job_id,
            "short_id": lease.attempt.job.short_id,
            "name": lease.attempt.job.name,
            "owner": lease.attempt.job.owner.username,
            "state": lease.attempt.job.state,
            "rank": lease.rank,
            "memory_bytes": lease.memory_bytes,
            "colour": lease.attempt.job.colour,
            "started_at": lease.started_at,
        }
        for lease in leases
    ]
