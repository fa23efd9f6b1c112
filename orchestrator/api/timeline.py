"""Who held which device, and who is expected to."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.auth import ApiRequest
from orchestrator.api.moments import LATEST_S, Moment
from orchestrator.exceptions import Malformed
from orchestrator.scheduler.timeline import Bar, read_timeline

router = Router()

WINDOW_S = 2 * 3600.0  # before and after now, where nothing else is asked for


class TimelineWindow(BaseModel):
    start: Moment | None = Field(
        None, alias="from", description="RFC 3339, or seconds since 1970; default: two hours ago"
    )
    end: Moment | None = Field(
        None, alias="to", description="RFC 3339, or seconds since 1970; default: in two hours"
    )
    pool: Annotated[str, Field(max_length=64)] | None = None


class LaneOut(BaseModel):
    id: str
    index: int
    label: str
    kind: str
    pool: str
    usable: bool


class BarOut(BaseModel):
    """A job on a device; name and owner are for everybody, as on the wall."""

    device: str
    job: UUID
    short_id: str
    name: str
    owner: str
    state: str
    colour: int | None
    rank: int | None = Field(description="null where it only waits")
    attempt: int | None
    memory_bytes: int | None = Field(description="claimed; null: the whole device")
    start: datetime
    start_latest: datetime | None = Field(description="of a planned start: the end of its range")
    end: datetime | None = Field(description="null: not known")
    planned: bool = Field(description="expected, not seen; a job that goes on has a planned bar from now")


class SpanOut(BaseModel):
    """What a device, or the part of it that no job had, was given to; idle times are left out."""

    device: str
    use: str = Field(description="foreign, reserved, drained or failed")
    owner: str = Field(description="the user of foreign processes; else empty")
    start: datetime
    end: datetime


class TimelineOut(BaseModel):
    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")
    now: datetime
    devices: list[LaneOut]
    bars: list[BarOut] = Field(description="what was, newest first; then what is planned")
    spans: list[SpanOut] = Field(description="beside the jobs, newest first")
    truncated: bool = Field(description="older bars or spans are left out; ask for less at a time")


@router.get("", response=TimelineOut, by_alias=True)
def get_timeline(request: ApiRequest, window: Query[TimelineWindow]) -> object:
    """Past by the leases, the future by what the scheduler predicted in its last pass."""
    now_s = time.time()
    start_s = window.start if window.start is not None else min(now_s, window.end or now_s) - WINDOW_S
    end_s = window.end if window.end is not None else max(now_s, start_s) + WINDOW_S
    if end_s <= start_s:
        raise Malformed("The time line ends before it begins.", fields={"to": ["give a time after 'from'"]})
    now = timezone.now()
    start, end = (datetime.fromtimestamp(min(max(each, 0.0), LATEST_S), tz=UTC) for each in (start_s, end_s))
    found = read_timeline(start, end, now=now, pool=window.pool)
    return {
        "from": start,
        "to": end,
        "now": now,
        "devices": [
            {
                "id": device.pk,
                "index": device.index,
                "label": device.label,
                "kind": device.kind,
                "pool": device.pool_id,
                "usable": device.usable,
            }
            for device in found.devices
        ],
        "bars": [show_bar(bar) for bar in found.bars],
        "spans": [
            {
                "device": span.device_id,
                "use": span.use,
                "owner": span.owner,
                "start": span.started_at,
                "end": span.lasted_until(now),
            }
            for span in found.spans
        ],
        "truncated": found.truncated,
    }


def show_bar(bar: Bar) -> dict[str, Any]:
    job = bar.job
    return {
        "device": bar.device_id,
        "job": job.pk,
        "short_id": job.short_id,
        "name": job.name,
        "owner": job.owner.get_username(),
        "state": job.state,
        "colour": job.colour,
        "rank": bar.rank,
        "attempt": bar.attempt,
        "memory_bytes": bar.memory_bytes,
        "start": bar.start,
        "start_latest": bar.start_latest,
        "end": bar.end,
        "planned": bar.planned,
    }
