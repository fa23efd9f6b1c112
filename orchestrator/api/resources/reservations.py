"""The calendar: bookings of devices for people, and maintenance."""

from datetime import datetime
from typing import Annotated

from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router
from pydantic import Field, StrictBool, StrictInt, StrictStr

from orchestrator.api.http.authentication import OPERATORS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.api.http.writing import ByName
from orchestrator.models import Booking, BookingKind
from orchestrator.people import audit, rights
from orchestrator.scheduler import calendar
from orchestrator.spec.field_types import Moment, Name

router = Router()


Devices = (
    Annotated[StrictInt, Field(ge=1, le=100_000)]
    | Annotated[list[Annotated[StrictStr, Field(max_length=96)]], Field(min_length=1, max_length=1000)]
)
People = Annotated[list[Annotated[StrictStr, Field(max_length=150)]], Field(max_length=200)]
Note = Annotated[StrictStr, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ReservationFilters(Paging):
    pool: str | None = Field(None, max_length=64)
    past: bool = Field(False, description="include past bookings")


class ReservationIn(Body):
    name: Annotated[Name, Field(max_length=80)] = Field(description="shown to people who wait")
    note: Note = Field("", description="what the booking is for, in words")
    pool: Annotated[StrictStr, Field(max_length=64)] = "default"
    kind: BookingKind = BookingKind.RESERVATION
    devices: Devices = Field(description="a number of devices, or their ids")
    people: People = Field(default_factory=list, description="user names; none for maintenance")
    start: Moment = Field(alias="from")
    until: Moment | None = Field(None, description="null: until deleted (maintenance only)")
    weekly: StrictBool = False
    repeat_until: Moment | None = Field(None, description="last time at which a repetition may start")


class ReservationChange(Body):
    """What is given is changed; pool and kind stay as they were made."""

    name: Annotated[Name, Field(max_length=80)] | None = None
    note: Note | None = Field(None, description="what the booking is for, in words")
    devices: Devices | None = Field(None, description="a number of devices, or their ids")
    people: People | None = None
    start: Moment | None = Field(None, alias="from")
    until: Moment | None = Field(None, description="null: until deleted (maintenance only)")
    weekly: StrictBool | None = None
    repeat_until: Moment | None = Field(None, description="null: without a last time")


class WhenOut(ByName):
    start: datetime = Field(alias="from")
    until: datetime | None


class ReservationOut(ByName):
    id: int
    name: str
    note: str = Field(description="what the booking is for, in words")
    kind: BookingKind
    pool: str
    count: int | None = Field(description="number of devices; null: those in devices")
    devices: list[str]
    people: list[str]
    start: datetime = Field(alias="from")
    until: datetime | None
    weekly: bool
    repeat_until: datetime | None
    active: bool = Field(description="in effect now")
    next: WhenOut | None = Field(description="the current or next occurrence; null: none")
    created_by: str


@router.get("", response=Page[ReservationOut], by_alias=True)
def list_reservations(request: ApiRequest, filters: Query[ReservationFilters]) -> Page[ReservationOut]:
    """The calendar, newest first; readable by everyone who is signed in."""
    rows = _rows() if filters.past else _rows().filter(pk__in=_open())
    if filters.pool is not None:
        rows = rows.filter(pool=filters.pool)
    return page(Page[ReservationOut], request, rows, filters, show=show_reservation)


@router.post("", response={201: ReservationOut}, auth=OPERATORS, by_alias=True)
def make_reservation(request: ApiRequest, body: ReservationIn) -> ReservationOut:
    """Book devices of a pool for people, or for maintenance."""
    pool = calendar.find_pool(body.pool)
    rights.check_operate(request.user, pool.pk)
    given = body.model_dump() | {"pool": pool}
    made = calendar.make(request.user, **given, address=audit.address_of(request))
    return show_reservation(_rows().get(pk=made.pk))


@router.get("/{int:reservation_id}", response=ReservationOut, by_alias=True)
def get_reservation(request: ApiRequest, reservation_id: int) -> ReservationOut:
    return show_reservation(get_object_or_404(_rows(), pk=reservation_id))


@router.patch("/{int:reservation_id}", response=ReservationOut, auth=OPERATORS, by_alias=True)
def change_reservation(request: ApiRequest, reservation_id: int, body: ReservationChange) -> ReservationOut:
    """Change time, devices, people, name or note of a booking; it is checked as a new one would be."""
    row = get_object_or_404(_rows(), pk=reservation_id)
    rights.check_operate(request.user, row.pool_id)
    given = body.model_dump(exclude_unset=True)
    ends = {
        name: given[name] for name in ("until", "repeat_until") if name in given
    }  # null says something there
    changes = {name: value for name, value in given.items() if value is not None} | ends
    calendar.change(row, by=request.user, **changes, address=audit.address_of(request))
    return show_reservation(_rows().get(pk=row.pk))


@router.delete("/{int:reservation_id}", response={204: None}, auth=OPERATORS)
def delete_reservation(request: ApiRequest, reservation_id: int) -> HttpResponse:
    """Delete a booking; its devices are free for everybody again."""
    row = get_object_or_404(_rows(), pk=reservation_id)
    rights.check_operate(request.user, row.pool_id)
    calendar.remove(row, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_reservation(row: Booking) -> ReservationOut:
    now = timezone.now()
    following = row.occurrence(now)
    return ReservationOut(
        id=row.pk,
        name=row.name,
        note=row.note,
        kind=BookingKind(row.kind),
        pool=row.pool_id,
        count=row.count,
        devices=[device.pk for device in row.devices.all()],
        people=sorted(user.get_username() for user in row.people.all()),
        start=row.start,
        until=row.until,
        weekly=row.weekly,
        repeat_until=row.repeat_until,
        active=following is not None and following[0] <= now,
        next=None if following is None else WhenOut(start=following[0], until=following[1]),
        created_by=row.created_by,
    )


def _rows() -> QuerySet[Booking]:
    return Booking.objects.prefetch_related("devices", "people")


def _open() -> list[int]:
    now = timezone.now()
    return [row.pk for row in Booking.objects.not_over(now) if row.occurrence(now) is not None]
