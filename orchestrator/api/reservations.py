"""The calendar: devices kept for people, and maintenance."""

from datetime import datetime
from typing import Annotated, Any

from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from orchestrator.api.auth import OPERATORS, ApiRequest
from orchestrator.api.paging import Page, Paging, page
from orchestrator.api.schemas import Body
from orchestrator.models import Booking, BookingKind
from orchestrator.people import audit, rights
from orchestrator.scheduler import calendar
from orchestrator.spec.job_spec import Moment, Name

router = Router()


class ReservationFilters(Paging):
    pool: str | None = Field(None, max_length=64)
    past: bool = Field(False, description="those that are over as well")


class ReservationIn(Body):
    name: Annotated[Name, Field(max_length=80)] = Field(description="what people read while they wait")
    pool: Annotated[StrictStr, Field(max_length=64)] = "default"
    kind: BookingKind = BookingKind.RESERVATION
    devices: (
        Annotated[StrictInt, Field(ge=1, le=100_000)]
        | Annotated[list[Annotated[StrictStr, Field(max_length=96)]], Field(min_length=1, max_length=1000)]
    ) = Field(description="so many, whichever come free, or the ids of devices")
    people: Annotated[list[Annotated[StrictStr, Field(max_length=150)]], Field(max_length=200)] = Field(
        default_factory=list, description="user names; none for maintenance"
    )
    start: Moment = Field(alias="from")
    until: Moment | None = Field(None, description="null: until it is deleted (maintenance only)")
    weekly: StrictBool = False
    repeat_until: Moment | None = Field(None, description="no repetition begins later")


class WhenOut(BaseModel):
    start: datetime = Field(alias="from")
    until: datetime | None


class ReservationOut(BaseModel):
    id: int
    name: str
    kind: BookingKind
    pool: str
    count: int | None = Field(description="so many, whichever come free; null: those in devices")
    devices: list[str]
    people: list[str]
    start: datetime = Field(alias="from")
    until: datetime | None
    weekly: bool
    repeat_until: datetime | None
    active: bool = Field(description="it is on now")
    next: WhenOut | None = Field(description="the time that is on, or the next; null: all are over")
    created_by: str


@router.get("", response=Page[ReservationOut], by_alias=True)
def list_reservations(request: ApiRequest, filters: Query[ReservationFilters]) -> object:
    """The calendar, newest entry first; everybody who is signed in may read it."""
    rows = _rows() if filters.past else _rows().filter(pk__in=_open())
    if filters.pool is not None:
        rows = rows.filter(pool=filters.pool)
    return page(request, rows, filters, show=show_reservation)


@router.post("", response={201: ReservationOut}, auth=OPERATORS, by_alias=True)
def make_reservation(request: ApiRequest, body: ReservationIn) -> object:
    """Keep devices of a pool for people, or take them out for maintenance."""
    pool = calendar.find_pool(body.pool)
    rights.check_operate(request.user, pool.pk)
    given = body.model_dump() | {"pool": pool}
    made = calendar.make(request.user, **given, address=audit.address_of(request))
    return show_reservation(_rows().get(pk=made.pk))


@router.get("/{int:reservation_id}", response=ReservationOut, by_alias=True)
def get_reservation(request: ApiRequest, reservation_id: int) -> object:
    return show_reservation(get_object_or_404(_rows(), pk=reservation_id))


@router.delete("/{int:reservation_id}", response={204: None}, auth=OPERATORS)
def delete_reservation(request: ApiRequest, reservation_id: int) -> object:
    """Give the devices back to everybody."""
    row = get_object_or_404(_rows(), pk=reservation_id)
    rights.check_operate(request.user, row.pool_id)
    calendar.remove(row, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_reservation(row: Booking) -> dict[str, Any]:
    now = timezone.now()
    following = row.occurrence(now)
    return {
        "id": row.pk,
        "name": row.name,
        "kind": row.kind,
        "pool": row.pool_id,
        "count": row.count,
        "devices": [device.pk for device in row.devices.all()],
        "people": sorted(user.get_username() for user in row.people.all()),
        "from": row.start,
        "until": row.until,
        "weekly": row.weekly,
        "repeat_until": row.repeat_until,
        "active": following is not None and following[0] <= now,
        "next": None if following is None else {"from": following[0], "until": following[1]},
        "created_by": row.created_by,
    }


def _rows() -> QuerySet[Booking]:
    return Booking.objects.prefetch_related("devices", "people")


def _open() -> list[int]:
    now = timezone.now()
    return [row.pk for row in Booking.objects.not_over(now) if row.occurrence(now) is not None]
