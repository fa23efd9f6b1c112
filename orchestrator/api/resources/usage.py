"""Use of devices, and how much of it was wasted."""

from datetime import datetime
from typing import Annotated, Literal

from django.contrib.auth.models import User
from django.http import HttpResponse
from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.reading import Moment
from orchestrator.api.http.writing import ByName, write_csv
from orchestrator.exceptions import Malformed, Sentence
from orchestrator.models.people import operated_pools
from orchestrator.people.usage import LONGEST_DAYS, Usage, UsageRow, read_usage, window

router = Router()

HOUR_S = 3600.0
KWH_J = 3.6e6


class UsageWindow(BaseModel):
    by: Literal["owner", "pool", "day"] = "owner"
    start: Moment | None = Field(
        None, alias="from", description="RFC 3339, or seconds since 1970; default: 30 days before the end"
    )
    end: Moment | None = Field(None, alias="to", description="RFC 3339, or seconds since 1970; default: now")
    pool: Annotated[str, Field(max_length=64)] | None = None


class UsageRowOut(BaseModel):
    """Sums for one owner, pool or day. Shared devices count in proportion to the memory held."""

    key: str = Field(description="an owner, a pool or a day in UTC; others: all other owners")
    gpu_hours: float
    wasted_gpu_hours: float = Field(description="failed and idle")
    failed_gpu_hours: float = Field(description="failed, and not resumed from a checkpoint")
    idle_gpu_hours: float = Field(description="held while nothing ran on the device")
    jobs_started: int = Field(description="for the first time")
    mean_queue_s: float | None = Field(description="of those jobs, from submit to start")
    longest_queue_s: float
    energy_kwh: float = Field(
        0.0, description="used by devices that measure it; a shared one counts in equal parts"
    )


class UsesOut(BaseModel):
    """Hours of all devices by use; they add up to ``device_hours``."""

    job: float
    foreign: float = Field(description="external processes")
    reserved: float = Field(description="kept for a job whose other devices were not free yet")
    idle: float
    drained: float
    failed: float = Field(description="faulty, fenced or missing")
    unknown: float = Field(description="the agent was down and no job ran")


class UsageOut(ByName):
    by: str
    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")
    device_hours: float
    uses: UsesOut
    rows: list[UsageRowOut]


CSV_HEADER = tuple(UsageRowOut.model_fields)


@router.get("", response=UsageOut, by_alias=True)
def get_usage(request: ApiRequest, asked: Query[UsageWindow]) -> UsageOut:
    """GPU-hours, wasted GPU-hours and queue time; operators see every owner, others see themselves and the rest."""
    usage = usage_for(request.user, asked)
    return UsageOut(
        by=asked.by,
        start=usage.start,
        end=usage.end,
        device_hours=usage.device_s / HOUR_S,
        uses=UsesOut(**{use: seconds / HOUR_S for use, seconds in usage.by_use.items()}),
        rows=[show_row(row) for row in usage.rows],
    )


@router.get("/csv")
def download_usage(request: ApiRequest, asked: Query[UsageWindow]) -> HttpResponse:
    """The rows as CSV for a spreadsheet."""
    return as_csv(usage_for(request.user, asked), asked.by)


def as_csv(usage: Usage, by: str) -> HttpResponse:
    rows = [list(dict(show_row(row)).values()) for row in usage.rows]
    name = f"usage-by-{by}-{usage.start:%Y%m%d}-{usage.end:%Y%m%d}.csv"
    return HttpResponse(
        write_csv([by, *CSV_HEADER[1:]], rows),
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "private, no-store",
        },
    )


def usage_for(user: User, asked: UsageWindow) -> Usage:
    """The usage as this person may see it.

    Raises:
        Malformed: the window ends before it starts, or is too long.
    """
    now = timezone.now()
    start, end = window(asked.start, asked.end, now)
    if end <= start:
        raise Malformed("The window ends before it starts.", fields={"to": ["give a time after 'from'"]})
    if (end - start).days > LONGEST_DAYS:
        raise Malformed(
            Sentence("The window is longer than {longest_days} days.", longest_days=LONGEST_DAYS),
            fields={"from": ["give a later time"]},
        )
    sees_all = operated_pools(user) is None
    return read_usage(
        asked.by, start, end, now=now, pool=asked.pool, only_owner=None if sees_all else user.get_username()
    )


def show_row(row: UsageRow) -> UsageRowOut:
    return UsageRowOut(
        key=row.key,
        gpu_hours=row.gpu_s / HOUR_S,
        wasted_gpu_hours=row.wasted_s / HOUR_S,
        failed_gpu_hours=row.failed_s / HOUR_S,
        idle_gpu_hours=row.idle_s / HOUR_S,
        jobs_started=row.jobs_started,
        mean_queue_s=row.mean_queue_s,
        longest_queue_s=row.longest_queue_s,
        energy_kwh=row.energy_j / KWH_J,
    )
