"""What the caller could start now."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, cast

from django.contrib.auth.models import User
from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.live.readings import read_now
from orchestrator.models import Device, Pool
from orchestrator.people import rights
from orchestrator.people.rights import Someone
from orchestrator.scheduler.capacity import read_capacity
from orchestrator.scheduler.forecast.steps import PoolSteps, Step, read_steps

router = Router()


class CapacityQuestion(BaseModel):
    pool: Annotated[str, Field(max_length=64)] | None = None
    steps: bool = Field(False, description="true: ask also when jobs with these time limits would start")


class StepOut(BaseModel):
    """A job of one device with this time limit that is submitted now."""

    time_limit_s: float = Field(description="of the job")
    starts_now: bool = Field(description="whether it would start at once")
    start_earliest: datetime | None = Field(description="null: it starts now, or its start is not known")
    start_latest: datetime | None = Field(description="null: as start_earliest")
    stops: int = Field(description="jobs that would be paused for it")


class PoolStepsOut(BaseModel):
    pool: str
    steps: list[StepOut] = Field(description="the shortest time limit first")


class CapacityOut(BaseModel):
    """What the caller could start now; pools, reservations, bookings and limits count."""

    sentence: str
    device_count: int
    free_count: int = Field(description="devices that jobs of the caller could take now, within their limits")
    beyond_limits_count: int = Field(description="free, but more than the caller's limits allow")
    limit: str = Field(description="the limit that forbids those; empty: none")
    kept_count: int = Field(description="free, but kept for a waiting job, a retry or a booking")
    closed_count: int = Field(description="free, but in pools that take no jobs of the caller")
    open_to_short_count: int = Field(
        description="kept devices that take jobs with a time limit under open_to_jobs_under_s"
    )
    open_to_jobs_under_s: float | None = Field(description="null: no kept device takes short jobs")
    claimable_bytes: int = Field(description="the most that a job could claim on a device that jobs share")
    pools: list[PoolStepsOut] = Field(description="empty unless steps are asked for, or too many jobs wait")


@router.get("", response=CapacityOut)
def get_capacity(request: ApiRequest, question: Query[CapacityQuestion]) -> CapacityOut:
    """What the caller could start now, and on request when jobs of other lengths would start."""
    now = timezone.now()
    devices = Device.objects.select_related("pool")
    pools = Pool.objects.order_by("pk")
    if question.pool is not None:
        devices, pools = devices.filter(pool=question.pool), pools.filter(pk=question.pool)
    capacity = read_capacity(request.user, devices, read_now(), now)
    steps = _steps(request.user, pools, now) if question.steps else []
    return CapacityOut(
        sentence=capacity.sentence,
        device_count=len(capacity.devices),
        free_count=capacity.free,
        beyond_limits_count=capacity.beyond_limits,
        limit=capacity.limit,
        kept_count=capacity.kept,
        closed_count=capacity.closed,
        open_to_short_count=capacity.open_to_short,
        open_to_jobs_under_s=capacity.open_to_jobs_under_s,
        claimable_bytes=capacity.claimable_bytes,
        pools=[PoolStepsOut(pool=each.pool, steps=[_show(step) for step in each.steps]) for each in steps],
    )


def _steps(user: Someone, pools: Iterable[Pool], now: datetime) -> list[PoolSteps]:
    return read_steps(cast(User, user), [pool for pool in pools if rights.may_submit(user, pool)], now)


def _show(step: Step) -> StepOut:
    return StepOut(
        time_limit_s=step.time_limit_s,
        starts_now=step.starts_now,
        start_earliest=step.start_earliest,
        start_latest=step.start_latest,
        stops=step.stops,
    )
