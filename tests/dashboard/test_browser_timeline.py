"""The timeline in a real browser."""

import re
import time
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from orchestrator.models import JobState, Lease
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


def test_who_held_which_device_is_drawn_in_the_row_of_the_device(
    open_page, ada, bob, make_attempt, make_job, write_readings
):
    mine = make_attempt(state=JobState.RUNNING, name="mine-<b>")
    other = make_attempt(make_job(owner=bob, name="other"), state=JobState.RUNNING)
    Lease.objects.update(started_at=timezone.now() - timedelta(minutes=90))
    devices = [mine.leases.get().device_id, other.leases.get().device_id]
    write_readings(*devices)

    page = open_page(ada, "/")

    lane = page.locator(f'[data-lane="{devices[0]}"]')
    expect(lane.locator(".lane-bar:not(.is-planned) > a")).to_have_text("mine-<b>")
    expect(page.locator(f'[data-lane="{devices[1]}"] .lane-bar').first).to_have_text("other")
    assert page.locator(f'[data-lane="{devices[1]}"] a').count() == 0
    expect(page.locator("#timeline-note")).to_contain_text("2 of 2 devices are in use")

    width = lane.locator(".lane-bar").first.evaluate("bar => bar.offsetWidth")
    page.get_by_role("link", name="12 h").click()
    expect(page).to_have_url(re.compile(r"/\?line=12"))
    expect(lane.locator(".lane-bar:not(.is-planned) > a")).to_be_visible()
    # Chromium evaluates no string on our pages, so the page cannot be told to wait for it.
    deadline = time.monotonic() + PATIENCE_S
    while lane.locator(".lane-bar").first.evaluate("bar => bar.offsetWidth") >= width / 2:
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
