"""The week calendar: what is booked, and the form that books; changes go through the REST API."""

from datetime import date, datetime, timedelta, tzinfo
from typing import TypedDict

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in, zone_of
from dashboard.parts import week
from orchestrator.models import Booking, Pool, Role
from orchestrator.people import rights

OPERATES = frozenset({Role.OPERATOR, Role.ADMIN})
FIRST_LENGTH = timedelta(hours=2)  # of a booking whose start was clicked
FARTHEST = timedelta(days=400)  # bookings begin within a year


@require_GET
def bookings(request: HttpRequest) -> HttpResponse:
    """The week that holds the day ``week``, of all pools or of ``pool``, with the form filled from ``from``."""
    user, zone = signed_in(request), zone_of(request)
    now = timezone.now().astimezone(zone)
    today = now.date()
    names = list(Pool.objects.order_by("name").values_list("name", flat=True))
    chosen = request.GET.get("pool", "")
    rows = Booking.objects.not_over(now - FARTHEST).prefetch_related("devices", "people")
    shown = rows.filter(pool=chosen) if chosen in names else rows
    monday = week.monday_of(_day(request.GET.get("week", ""), today))
    operated = [name for name in names if rights.right_in(user, name) in OPERATES]
    context = {
        "nav": "bookings",
        "week": week.lay_out(shown, monday, now=now, reader_id=user.pk),
        "this_week": week.monday_of(today),
        "zone": zone,
        "hours": week.HOURS,
        "pools": names,
        "chosen": chosen if chosen in names else "",
        "operated": operated,
        "form": _first_fields(request.GET.get("from", "")),
        "changed": _changed(request.GET.get("change", ""), operated, zone),
    }
    return render(request, "dashboard/bookings.html", context)


class ChangedBooking(TypedDict):
    """A booking, and the texts of its form's fields."""

    booking: Booking
    devices: str
    people: str
    start: str
    until: str


def _changed(text: str, operated: list[str], zone: tzinfo) -> ChangedBooking | None:
    """The booking that the form below is to change, with its texts; None without one that the reader may change."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    row = Booking.objects.filter(pk=int(text), pool__in=operated).first()
    if row is None:
        return None
    return {
        "booking": row,
        "devices": ", ".join(device.pk for device in row.devices.all()),
        "people": ", ".join(sorted(person.get_username() for person in row.people.all())),
        "start": _field(row.start.astimezone(zone)),
        "until": _field(row.until.astimezone(zone)) if row.until else "",
    }


def _day(text: str, today: date) -> date:
    """The day that the address names; today where it names none, or one too far to be booked."""
    try:
        day = parse_date(text) or today
    except ValueError:  # such as 2026-02-30
        return today
    return day if abs(day - today) <= FARTHEST else today


def _first_fields(text: str) -> dict[str, str]:
    """Start and end for the form, by the hour that was clicked; empty without one."""
    try:
        start = parse_datetime(text)
    except ValueError:
        start = None
    if start is None or start.tzinfo is not None:
        return {}
    return {"start": _field(start), "until": _field(start + FIRST_LENGTH)}


def _field(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M")
