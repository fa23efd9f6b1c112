"""The week calendar: bookings by day in the reader's zone, and the form that makes them."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.parts import week
from orchestrator.models import Booking, PoolRight, Right
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db
MONDAY = date(2026, 11, 23)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def book(make_pool):
    def make(name: str, start: datetime, hours: float | None, **fields) -> Booking:
        until = None if hours is None else start + timedelta(hours=hours)
        fields = {"pool": make_pool(), "count": 1, "created_by": "root", **fields}
        return Booking.objects.create(name=name, start=start, until=until, **fields)

    return make


def laid_out(zone=UTC, monday: date = MONDAY, reader_id: int | None = None) -> week.Week:
    now = datetime(2026, 11, 23, 14, 20, tzinfo=zone)
    return week.lay_out(Booking.objects.all(), monday, now=now, reader_id=reader_id)


def at(day: int, hour: int) -> datetime:
    return datetime(2026, 11, day, hour, tzinfo=UTC)


def test_a_booking_is_placed_by_the_clock_of_its_reader(book):
    book("course", at(24, 6), 12)

    [in_utc] = laid_out().days[1].blocks
    [in_berlin] = laid_out(BERLIN).days[1].blocks

    assert (in_utc.top, in_utc.height) == (25.0, 50.0)
    assert in_berlin.top == pytest.approx(100 * 7 / 24, abs=0.01)


def test_a_booking_over_midnight_has_a_part_in_each_day(book):
    book("night", at(24, 18), 12)

    days = laid_out().days

    assert [len(day.blocks) for day in days] == [0, 1, 1, 0, 0, 0, 0]
    assert (days[1].blocks[0].top, days[1].blocks[0].height) == (75.0, 25.0)
    assert (days[2].blocks[0].top, days[2].blocks[0].height) == (0.0, 25.0)


def test_a_weekly_booking_is_in_later_weeks_until_its_repetition_ends(book):
    book("course", at(24, 6), 2, weekly=True, repeat_until=at(24, 6) + timedelta(days=7))

    weeks = [laid_out(monday=MONDAY + timedelta(days=7 * number)) for number in (-1, 0, 1, 2)]

    assert [len(one.bookings) for one in weeks] == [0, 1, 1, 0]


def test_maintenance_without_an_end_fills_the_week_from_its_start(book):
    book("new fans", at(26, 12), None, kind="maintenance")

    days = laid_out().days

    assert [len(day.blocks) for day in days] == [0, 0, 0, 1, 1, 1, 1]
    assert days[6].blocks[0].until is None
    assert days[6].blocks[0].height == 100.0


def test_bookings_at_one_time_lie_side_by_side(book):
    book("one", at(24, 6), 4)
    book("two", at(24, 8), 4)
    book("three", at(24, 10), 4)

    blocks = laid_out().days[1].blocks

    assert [(block.left, block.width) for block in blocks] == [(0, 50), (50, 50), (0, 50)]


def test_a_day_of_25_hours_keeps_its_rows(book):
    """In Berlin the clock goes back at 3:00 on 2026-10-25, so 18:00 is 19 hours after midnight."""
    book("evening", datetime(2026, 10, 25, 17, tzinfo=UTC), 6)

    [block] = laid_out(BERLIN, date(2026, 10, 19)).days[6].blocks

    assert (block.top, block.height) == (75.0, 25.0)


def test_the_reader_sees_which_bookings_are_for_them(book, ada):
    book("course", at(24, 6), 2).people.set([ada])

    assert laid_out(reader_id=ada.pk).days[1].blocks[0].looks == "is-mine"
    assert laid_out().days[1].blocks[0].looks == ""


def test_everybody_sees_the_week_and_only_operators_the_form(reader, book, ada, make_pool):
    book("course", at(24, 6), 2)
    address = reverse("bookings") + "?week=2026-11-25"

    page = html_of(reader(ada).get(address))
    assert "course" in page
    assert 'action="/change"' not in page
    PoolRight.objects.create(pool=make_pool(), user=ada, right=Right.OPERATE)
    page = html_of(reader(ada).get(address))
    assert "POST /api/v1/reservations" in page
    assert "DELETE /api/v1/reservations/" in page


def test_one_pool_alone_can_be_shown(reader, book, root, make_pool):
    book("course", at(24, 6), 2)
    book("paper", at(24, 6), 2, pool=make_pool("lab"))

    page = html_of(reader(root).get(reverse("bookings") + "?week=2026-11-25&pool=lab"))

    assert "paper" in page
    assert "course" not in page


def test_only_hours_that_are_not_over_can_be_clicked(reader, root, make_pool):
    make_pool()
    assert [day.first_hour for day in laid_out().days] == [14, 0, 0, 0, 0, 0, 0]
    assert [day.first_hour for day in laid_out(monday=MONDAY - timedelta(days=7)).days] == [24] * 7

    page = html_of(reader(root).get(reverse("bookings")))

    days = 6 - timezone.now().weekday()
    hours_left = page.count("data-at=") - 24 * days
    assert hours_left in {24 - timezone.now().hour, 25 - timezone.now().hour}, "the hour may have changed"


def test_an_hour_that_was_clicked_fills_the_form(reader, root, make_pool):
    make_pool()
    page = html_of(reader(root).get(reverse("bookings") + "?week=2026-11-24&from=2026-11-24T09:00"))

    assert 'value="2026-11-24T09:00"' in page
    assert 'value="2026-11-24T11:00"' in page


@pytest.mark.parametrize(
    "query", ["week=2026-02-30", "week=9999-12-31", "week=x&pool=none", "from=2026-13-01T00:00", "from=x"]
)
def test_an_address_that_names_no_day_shows_this_week(reader, root, query):
    answer = reader(root).get(f"{reverse('bookings')}?{query}")

    assert answer.status_code == 200
    assert "aria-current" in html_of(answer)


@pytest.mark.parametrize("zone", ["../../etc/passwd", "Nowhere/Land", "x" * 300, ""])
def test_a_cookie_that_names_no_zone_means_utc(reader, root, zone):
    browser = reader(root)
    browser.cookies["berth_zone"] = zone

    assert "times in UTC" in html_of(browser.get(reverse("bookings")))


def test_days_are_those_of_the_browsers_zone(reader, root):
    browser = reader(root)
    browser.cookies["berth_zone"] = "Europe/Berlin"

    assert "times in Europe/Berlin" in html_of(browser.get(reverse("bookings")))


def test_a_booking_fills_the_form_that_changes_it_for_operators_of_its_pool_alone(
    reader, book, ada, root, make_pool
):
    booking = book("course", at(24, 9), 3, note="for the exam", weekly=True)
    booking.people.add(ada)
    PoolRight.objects.create(user=ada, pool=make_pool("other"), right=Right.OPERATE)
    address = f"/bookings?week=2026-11-23&change={booking.pk}"

    page = html_of(reader(root).get(address))
    assert f'value="PATCH /api/v1/reservations/{booking.pk}"' in page
    for text in (
        'value="2026-11-24T09:00"',
        'value="2026-11-24T12:00"',
        'value="for the exam"',
        'value="ada"',
    ):
        assert text in page
    assert f"change={booking.pk}#book" in html_of(reader(root).get("/bookings?week=2026-11-23"))
    for hidden in (html_of(reader(ada).get(address)), html_of(reader(root).get("/bookings?change=999"))):
        assert "PATCH /api/v1/reservations" not in hidden
    assert f"change={booking.pk}#book" not in html_of(reader(ada).get("/bookings?week=2026-11-23"))
