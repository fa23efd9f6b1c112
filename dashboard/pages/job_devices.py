"""Readings of a job's devices while it held them: for charts, and as CSV."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import isnan
from typing import TypedDict
from uuid import UUID

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from berth.shared import words
from dashboard.pages.job import visible_job
from orchestrator.api.http.writing import write_csv
from orchestrator.models import Device, Job, Lease
from orchestrator.store.metrics.buckets import Series
from orchestrator.store.metrics.device_history import MEASURES, DeviceHistory, reading_json

MOST_POINTS = 240
MEMORY = "memory_used_bytes"
CHARTED = ("utilization_percent",)
MOST_LEASES = 64
CSV_HEADER = ("device", "time", *(f"{name}_{what}" for name in MEASURES for what in ("mean", "min", "max")))


class DeviceCurves(TypedDict):
    """What the charts draw of a device."""

    id: str
    label: str
    total_bytes: int
    series: dict[str, object]


@require_GET
def device_history(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Memory and utilisation of each device from the job's first to its last lease."""
    history = DeviceHistory(settings.HOME.device_history)
    devices: dict[str, Device] = {}
    spans: dict[str, list[tuple[datetime, datetime]]] = {}
    for lease in _leases(visible_job(request, job_id)):
        devices.setdefault(lease.device.pk, lease.device)
        spans.setdefault(lease.device.pk, []).append(_span(lease))
    curves = [_curves(history, device, spans[device.pk]) for device in devices.values()]
    shown = sorted(curves, key=lambda each: each["label"])
    return HttpResponse(orjson.dumps({"devices": shown}), content_type="application/json")


@require_GET
def device_csv(request: HttpRequest, job_id: UUID) -> StreamingHttpResponse:
    """All readings of the job's devices, one every two seconds, limited to its leases."""
    job = visible_job(request, job_id)
    return StreamingHttpResponse(
        _records(list(_leases(job))),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{job.short_id}-devices.csv"'},
    )


def _leases(job: Job) -> list[Lease]:
    leases = Lease.objects.filter(attempt__job=job).select_related("device").order_by("-started_at")
    return list(leases[:MOST_LEASES])


def _span(lease: Lease) -> tuple[datetime, datetime]:
    return lease.started_at, lease.ended_at or timezone.now()


def _curves(
    history: DeviceHistory, device: Device, spans: Sequence[tuple[datetime, datetime]]
) -> DeviceCurves:
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    return {
        "id": device.pk,
        "label": words.labelled(device.label),
        "total_bytes": device.memory_bytes,
        "series": _series(history, device.pk, start, end),
    }


def _series(history: DeviceHistory, device_id: str, start: datetime, end: datetime) -> dict[str, object]:
    found = history.read(device_id, start.timestamp(), end.timestamp(), max_points=MOST_POINTS)
    memory = found.pop(MEMORY, None)
    shown = {name: found[name] for name in CHARTED if name in found}
    return dict(reading_json(shown if memory is None else {**shown, "memory_gib": _in_gib(memory)}))


def _in_gib(memory: Series) -> Series:
    """As people read it: the charts draw what they get."""
    y, low, high = (values / words.GIB for values in (memory.y, memory.y_min, memory.y_max))
    return replace(memory, y=y, y_min=low, y_max=high)


def _records(leases: list[Lease]) -> Iterator[bytes]:
    yield write_csv(CSV_HEADER, ()).encode()
    history = DeviceHistory(settings.HOME.device_history)
    for lease in reversed(leases):
        start, end = _span(lease)
        rows = [
            (
                lease.device.label,
                datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds"),
                *("" if isnan(value) else value for value in values),
            )
            for at_s, values in history.records(lease.device_id, start.timestamp(), end.timestamp())
        ]
        yield write_csv(None, rows).encode()
