"""The week calendar in a real browser: hours are dragged over, and days are those of the browser's time zone."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from orchestrator.models import Booking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
BERLIN = ZoneInfo("Europe/Berlin")


def test_hours_that_were_dragged_over_become_a_booking_in_the_readers_time_zone(
    home, open_page, root, ada, make_device
):
    make_device(0)
    day = timezone.now().astimezone(BERLIN).date() + timedelta(days=7)
    page = open_page(root, f"/bookings?week={day}", timezone_id="Europe/Berlin")
    expect(page.locator("#week")).to_have_attribute("data-zone", "Europe/Berlin")

    first, last = (page.locator(f'[data-at="{day}T{hour}:00"]') for hour in ("09", "11"))
    first.hover(force=True)
    page.mouse.down()
    last.hover(force=True)
    page.mouse.up()
    expect(page.locator("#booking-name")).to_be_focused()
    page.keyboard.type("paper deadline")
    page.locator("#booking-people").fill("ada")
    page.get_by_role("button", name="Reserve", exact=True).click()

    expect(page.locator(".booking")).to_contain_text("paper deadline")
    booking = Booking.objects.get()
    assert booking.start == datetime(day.year, day.month, day.day, 9, tzinfo=BERLIN)
    assert booking.until == datetime(day.year, day.month, day.day, 12, tzinfo=BERLIN)
    page.get_by_role("button", name="Delete paper deadline").click()
    expect(page.locator("#week")).to_contain_text("Nothing is booked in this week")
