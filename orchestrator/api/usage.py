"""What was used of the devices, and what of it was wasted."""

from datetime import datetime
from typing import Annotated, Literal

from django.contrib.auth.models import User
from django.http import HttpResponse
from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.auth import ApiRequest
from orchestrator.api.csv_text import write_csv
from orchestrator.api.moments import Moment
from orchestrator.exceptions import Malformed
from orchestrator.models.people import operated_pools
from orchestrator.people.usage import LONGEST_DAYS, Usage, UsageRow, read_usage, window

router = Router()

HOUR_S = 3600.0


class UsageWindow(BaseModel):
    by: Literal["owner", "pool", "day"] = "owner"
    start: Moment | None = Field(
        None, alias="from", description="RFC 3339, or seconds since 1970; default: 30 days before the end"
    )
    end: Moment | None = Field(None, alias="to", description="RFC 3339, or seconds since 1970; default: now")
    pool: Annotated[str, Field(max_length=64)] | None = None


class UsageRowOut(BaseModel):
    """Of devices that were shared only the part, by memory."""

    key: str = Field(
        description="an owner, a pool or a day in UTC; others: everybody whose rows are not yours"
    )
    gpu_hours: float
    wasted_gpu_hours: float = Field(description="failed and idle")
    failed_gpu_hours: float = Field(description="work that ended badly and was not resumed from a checkpoint")
    idle_gpu_hours: float = Field(description="held, with nothing running on the device")
    jobs_started: int = Field(description="for the first time")
    mean_queue_s: float | None = Field(description="of those jobs, from the submit to the start")
    longest_queue_s: float


class UsesOut(BaseModel):
    """Hours of all devices by what they were given to; they add up to ``device_hours``."""

    job: float
    foreign: float = Field(description="processes that are not Berth's")
    reserved: float = Field(description="kept for a job whose other devices were not free")
    idle: float
    drained: float
    failed: float = Field(description="faulty, fenced or missing")
    unknown: float = Field(description="the agent was down, and no job ran")


class UsageOut(BaseModel):
    by: str
    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")
    device_hours: float
    uses: UsesOut
    rows: list[UsageRowOut]


CSV_HEADER = tuple(UsageRowOut.model_fields)


@router.get("", response=UsageOut, by_alias=True)
def get_usage(request: ApiRequest, asked: Query[UsageWindow]) -> object:
    """GPU-hours, wasted GPU-hours and queue time; operators see every owner, others themselves and the sum."""
    found = usage_for(request.user, asked)
    return {
        "by": asked.by,
        "from": found.start,
        "to": found.end,
        "device_hours": found.device_s / HOUR_S,
        "uses": {use: seconds / HOUR_S for use, seconds in found.by_use.items()},
        "rows": [show_row(row) for row in found.rows],
    }


@router.get("/csv")
def download_usage(request: ApiRequest, asked: Query[UsageWindow]) -> HttpResponse:
    """The rows as a file for a spreadsheet."""
    return as_csv(usage_for(request.user, asked), asked.by)


def as_csv(found: Usage, by: str) -> HttpResponse:
    rows = [list(show_row(row).values()) for row in found.rows]
    name = f"usage-by-{by}-{found.start:%Y%m%d}-{found.end:%Y%m%d}.csv"
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
        Malformed: the window ends before it begins, or is longer than is summed at once.
    """
    now = timezone.now()
    start, end = window(asked.start, asked.end, now)
    if end <= start:
        raise Malformed("The time ends before it begins.", fields={"to": ["give a time after 'from'"]})
    if (end - start).days > LONGEST_DAYS:
        raise Malformed(
            f"At most {LONGEST_DAYS} days are summed at once.", fields={"from": ["give a later time"]}
        )
    sees_all = operated_pools(user) is None
    return read_usage(
        asked.by, start, end, now=now, pool=asked.pool, only_owner=None if sees_all else user.get_username()
    )


def show_row(row: UsageRow) -> dict[str, object]:
    return {
        "key": row.key,
        "gpu_hours": row.gpu_s / HOUR_S,
        "wasted_gpu_hours": row.wasted_s / HOUR_S,
        "failed_gpu_hours": row.failed_s / HOUR_S,
        "idle_gpu_hours": row.idle_s / HOUR_S,
        "jobs_started": row.jobs_started,
        "mean_queue_s": row.mean_queue_s,
        "longest_queue_s": row.longest_queue_s,
    }
