"""Devices, with their current readings and holders."""

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import OPERATORS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body, Moment
from orchestrator.api.http.writing import ByName
from orchestrator.api.resources.schemas import SeriesOut
from orchestrator.exceptions import Conflict, Impossible, Malformed, Sentence
from orchestrator.facts.record import Fact, Facts
from orchestrator.jobs import drains
from orchestrator.live import readings, wakeups
from orchestrator.models import AdminState, Device, Lease, Pool
from orchestrator.people import audit, rights
from orchestrator.scheduler import availability
from orchestrator.scheduler.availability import Availability
from orchestrator.store.metrics.device_history import DeviceHistory

router = Router()


class ProcessOut(BaseModel):
    pid: int
    used_bytes: int
    user: str | None = None
    command: str = ""
    job: str | None = Field(None, description="null: an external process")
    age_s: float | None = Field(None, description="for how long it has run; null: not known")


class HolderOut(BaseModel):
    job: UUID
    short_id: str
    name: str
    owner: str
    state: str
    rank: int
    memory_bytes: int | None
    colour: int | None
    started_at: datetime


class ReadingOut(BaseModel):
    taken_at: datetime
    used_bytes: int
    total_bytes: int
    utilization_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    foreign_bytes: int = 0
    stale: bool
    processes: list[ProcessOut] = []


class KeptForOut(BaseModel):
    id: UUID
    name: str
    owner: str


class AvailabilityOut(BaseModel):
    """Whether the caller could start a job on a device now."""

    state: Availability
    sentence: str
    kept_for_job: KeptForOut | None
    kept_for_booking: str | None
    start_earliest: datetime | None = Field(description="of the job it is kept for; null: unknown")
    start_latest: datetime | None
    open_to_jobs_under_s: float | None = Field(
        description="kept, but a job with a smaller time limit may start on it; null: no time limit is short enough"
    )
    open_to_pausable_jobs: bool = Field(description="kept, but a preemptible job may start on it")


class DeviceOut(BaseModel):
    id: str
    index: int
    label: str
    name: str
    kind: str
    pool: str
    node: str
    memory_bytes: int
    state: str = Field(description="enabled, draining or disabled; set by operators")
    drain_reason: str = Field(description="why it is draining or disabled; empty: nobody said")
    drain_until: datetime | None = Field(description="when it is enabled again by itself; null: by hand")
    health: str
    health_reason: str
    health_code: str = Field(description="the same as health_reason; empty while it is healthy")
    health_facts: Facts = Field(description="what health_reason is made of")
    usable: bool
    numa_node: int | None
    nvlink: list[str]
    mig_parent: str | None
    mig_profile: str | None
    driver: str | None
    reading: ReadingOut | None
    holders: list[HolderOut]
    availability: AvailabilityOut


class HistoryOut(ByName):
    series: dict[str, SeriesOut]
    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")


class DeviceChanges(Body):
    state: AdminState | None = None
    reason: StrictStr = Field("", max_length=200, description="why it is drained or disabled, for people")
    until: Moment | None = Field(
        None, description="when a drained or disabled device is enabled again by itself; null: by hand"
    )
    pool: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        None, description="pool to move it to; refused while it is held"
    )


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
def list_devices(request: ApiRequest, filters: Query[DeviceFilters]) -> Page[DeviceOut]:
    """Devices by index; everybody sees name and owner of the jobs on them."""
    rows = _rows()
    if filters.pool is not None:
        rows = rows.filter(pool=filters.pool)
    now = readings.read_now()
    reader = availability.AvailabilityReader(request.user, timezone.now())
    return page(
        Page[DeviceOut],
        request,
        rows,
        filters,
        show=lambda device: show_device(device, now, reader),
        ordering="index",
    )


@router.get("/{device_id}", response=DeviceOut)
def get_device(request: ApiRequest, device_id: str) -> DeviceOut:
    return _show_one(request, get_object_or_404(_rows(), pk=device_id))


@router.patch("/{device_id}", response=DeviceOut, auth=OPERATORS)
def change_device(request: ApiRequest, device_id: str, body: DeviceChanges) -> DeviceOut:
    """Enable, drain (running jobs continue, nothing new starts) or disable a device; or move it to another pool."""
    device = get_object_or_404(_rows(), pk=device_id)
    rights.check_operate(request.user, device.pool_id)
    if body.state is None and (body.pool is None or body.reason or body.until is not None):
        raise Malformed(
            "Nothing to change: give state, pool or both.",
            fields={"state": ["give a state, or a pool to move to"]},
        )
    address = audit.address_of(request)
    with transaction.atomic():
        if body.pool is not None and body.pool != device.pool_id:
            _move(request, device, body.pool, address)
        if body.state is not None:
            reason, until = _drain_of(device, body)
            drains.set_state(device, body.state, by=request.user, reason=reason, until=until, address=address)
        wakeups.schedule()
        wakeups.publish("devices")
    return _show_one(request, device)


def _drain_of(device: Device, body: DeviceChanges) -> tuple[str, datetime | None]:
    """Reason and end of the change; a device that stays out of use keeps those that are left out."""
    until = None if body.until is None else datetime.fromtimestamp(body.until, tz=UTC)
    reason = _one_line(body.reason)
    if body.state == AdminState.ENABLED:
        return reason, until
    given = body.model_fields_set
    return (
        reason if "reason" in given else device.drain_reason,
        until if "until" in given else device.drain_until,
    )


def _one_line(words: str) -> str:
    return " ".join(words.split()).rstrip(".")


def _move(request: ApiRequest, device: Device, pool_id: str, address: str) -> None:
    """Move a device to another pool; a held device stays, since a pool's jobs run on its own devices.

    Raises:
        Impossible: there is no such pool.
        Conflict: a job holds the device.
    """
    pool = Pool.objects.filter(pk=pool_id).first()
    if pool is None:
        raise Impossible(
            Sentence("There is no pool {pool_id!r}.", pool_id=pool_id[:64]), fields={"pool": ["unknown pool"]}
        )
    rights.check_operate(request.user, pool.pk)
    if Lease.objects.active().filter(device=device).exists():
        raise Conflict(
            Sentence(
                "{label} is held by a job. Drain it, and move it when the job has ended.", label=device.label
            )
        )
    text = f"{device.label}: pool {device.pool_id} -> {pool.pk}."
    device.pool = pool
    device.save(update_fields=["pool"])
    audit.record(request.user, "device.pool", f"device {device.pk}", text, address=address)


@router.get("/{device_id}/history", response=HistoryOut, by_alias=True)
def read_device_history(request: ApiRequest, device_id: str, window: Query[HistoryWindow]) -> HistoryOut:
    """Memory, utilization, temperature and power over time; x is seconds since 1970."""
    device = get_object_or_404(Device, pk=device_id)
    end_s = time.time() if window.end is None else window.end
    start_s = end_s - HOUR_S if window.start is None else window.start
    series = DeviceHistory(settings.HOME.device_history).read(device.pk, start_s, end_s, window.max_points)
    return HistoryOut(
        series={name: SeriesOut(**each.as_json()) for name, each in series.items()},
        start=datetime.fromtimestamp(start_s, tz=UTC),
        end=datetime.fromtimestamp(end_s, tz=UTC),
    )


def _show_one(request: ApiRequest, device: Device) -> DeviceOut:
    return show_device(
        device, readings.read_now(), availability.AvailabilityReader(request.user, timezone.now())
    )


def show_device(
    device: Device, now: readings.NowReadings, reader: availability.AvailabilityReader
) -> DeviceOut:
    holders = _holders(device.leases.all())
    standing = reader.judge(device, held=bool(holders), entry=now.device(device.pk))
    return DeviceOut(
        id=device.pk,
        index=device.index,
        label=device.label,
        name=device.name,
        kind=device.kind,
        pool=device.pool_id,
        node=device.node,
        memory_bytes=device.memory_bytes,
        state=device.admin_state,
        drain_reason=device.drain_reason,
        drain_until=device.drain_until,
        health=device.health,
        health_reason=device.health_reason,
        health_code=Fact.read(device.health_why).code,
        health_facts=dict(Fact.read(device.health_why).facts),
        usable=device.usable,
        numa_node=device.numa_node,
        nvlink=device.nvlink,
        mig_parent=device.mig_parent or None,
        mig_profile=device.mig_profile or None,
        driver=device.driver or None,
        reading=_reading(now.device(device.pk), now.taken_at),
        holders=holders,
        availability=_availability(standing),
    )


def _availability(standing: availability.DeviceAvailability) -> AvailabilityOut:
    keep = standing.keep
    job = keep.job if keep else None
    return AvailabilityOut(
        state=standing.state,
        sentence=standing.sentence,
        kept_for_job=KeptForOut(id=job.pk, name=job.name, owner=job.owner.get_username()) if job else None,
        kept_for_booking=keep.booking.name if keep and keep.booking else None,
        start_earliest=job.start_earliest if job else None,
        start_latest=job.start_latest if job else None,
        open_to_jobs_under_s=keep.shorter_than_s if keep else None,
        open_to_pausable_jobs=bool(keep and keep.pausable),
    )


def _rows() -> QuerySet[Device]:
    active = Lease.objects.active().select_related("attempt__job__owner").order_by("rank")
    return Device.objects.select_related("pool").prefetch_related(Prefetch("leases", queryset=active))


def _reading(reading: Mapping[str, Any] | None, taken_at: float) -> ReadingOut | None:
    if reading is None:
        return None
    age_s = datetime.now(tz=UTC).timestamp() - taken_at
    return ReadingOut(
        taken_at=datetime.fromtimestamp(taken_at, tz=UTC),
        used_bytes=reading["used_bytes"],
        total_bytes=reading["total_bytes"],
        utilization_percent=reading.get("utilization_percent"),
        temperature_c=reading.get("temperature_c"),
        power_w=reading.get("power_w"),
        foreign_bytes=reading.get("foreign_bytes", 0),
        stale=bool(reading.get("stale")) or age_s > readings.STALE_AFTER_S,
        processes=reading.get("processes", []),
    )


def _holders(leases: Iterable[Lease]) -> list[HolderOut]:
    return [
        HolderOut(
            job=lease.attempt.job_id,
            short_id=lease.attempt.job.short_id,
            name=lease.attempt.job.name,
            owner=lease.attempt.job.owner.username,
            state=lease.attempt.job.state,
            rank=lease.rank,
            memory_bytes=lease.memory_bytes,
            colour=lease.attempt.job.colour,
            started_at=lease.started_at,
        )
        for lease in leases
    ]
