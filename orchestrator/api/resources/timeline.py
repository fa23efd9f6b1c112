"""Past and planned use of devices."""

import time
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.reading import LATEST_S, Moment
from orchestrator.api.http.writing import ByName
from orchestrator.exceptions import Malformed
from orchestrator.scheduler.timeline import Bar, read_timeline

router = Router()

WINDOW_S = 2 * 3600.0  # default: before and after now


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
    """A job on a device; everybody may see its name and owner."""

    device: str
    job: UUID
    short_id: str
    name: str
    owner: str
    state: str
    colour: int | None
    rank: int | None = Field(description="null if the job only waits")
    attempt: int | None
    memory_bytes: int | None = Field(description="claimed; null: the whole device")
    start: datetime
    start_latest: datetime | None = Field(description="latest time of a planned start")
    end: datetime | None = Field(description="null: unknown")
    planned: bool = Field(description="estimated; a running job has a planned bar from now on")


class SpanOut(BaseModel):
    """Use of a device other than by jobs; idle times are left out."""

    device: str
    use: str = Field(description="foreign, reserved, drained or failed")
    owner: str = Field(description="the user of external processes; otherwise empty")
    start: datetime
    end: datetime


class TimelineOut(ByName):
    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")
    now: datetime
    devices: list[LaneOut]
    bars: list[BarOut] = Field(description="past bars, newest first; then planned ones")
    spans: list[SpanOut] = Field(description="uses other than jobs, newest first")
    truncated: bool = Field(description="older bars or spans are missing; request a shorter window")


@router.get("", response=TimelineOut, by_alias=True)
def get_timeline(request: ApiRequest, window: Query[TimelineWindow]) -> TimelineOut:
    """The past from leases, the future from the scheduler's last estimates."""
    now_s = time.time()
    start_s = window.start if window.start is not None else min(now_s, window.end or now_s) - WINDOW_S
    end_s = window.end if window.end is not None else max(now_s, start_s) + WINDOW_S
    if end_s <= start_s:
        raise Malformed("The window ends before it starts.", fields={"to": ["give a time after 'from'"]})
    now = timezone.now()
    start, end = (datetime.fromtimestamp(min(max(each, 0.0), LATEST_S), tz=UTC) for each in (start_s, end_s))
    timeline = read_timeline(start, end, now=now, pool=window.pool)
    return TimelineOut(
        start=start,
        end=end,
        now=now,
        devices=[
            LaneOut(
                id=device.pk,
                index=device.index,
                label=device.label,
                kind=device.kind,
                pool=device.pool_id,
                usable=device.usable,
            )
            for device in timeline.devices
        ],
        bars=[show_bar(bar) for bar in timeline.bars],
        spans=[
            SpanOut(
                device=span.device_id,
                use=span.use,
                owner=span.owner,
                start=span.started_at,
                end=span.lasted_until(now),
            )
            for span in timeline.spans
        ],
        truncated=timeline.truncated,
    )


def show_bar(bar: Bar) -> BarOut:
    job = bar.job
    return BarOut(
        device=bar.device_id,
        job=job.pk,
        short_id=job.short_id,
        name=job.name,
        owner=job.owner.get_username(),
        state=job.state,
        colour=job.colour,
        rank=bar.rank,
        attempt=bar.attempt,
        memory_bytes=bar.memory_bytes,
        start=bar.start,
        start_latest=bar.start_latest,
        end=bar.end,
        planned=bar.planned,
    )
