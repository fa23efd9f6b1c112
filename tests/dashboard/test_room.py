"""Is there room: tiles, box line, Pools and the device's page say the same of a device that is kept."""

import re

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from orchestrator.models import Job, JobState, Quota, SchedulerTerm
from tests.dashboard.markup import html_of

HOUR_S = 3600


@pytest.fixture
def kept(make_job, make_attempt, make_device, write_readings, bob) -> Job:
    """Device 1 is kept for a job of bob's that waits for both."""
    make_attempt(state=JobState.RUNNING, devices=[make_device(0)])
    make_device(1)
    write_readings("sim-0", "sim-1", sim_0={"holders": [{"job": str(Job.objects.get().pk), "name": "digits", "owner": "ada", "rank": 0}]})  # fmt: skip
    wide: Job = make_job(bob, gpus=2, name="big-7b")
    reservation = {"job": str(wide.pk), "devices": ["sim-0", "sim-1"], "since": 0.0, "open_until": 2e9}
    SchedulerTerm.objects.update_or_create(pk=1, defaults={"reservations": [reservation]})
    return wide


def test_a_device_that_is_kept_is_called_free_nowhere(reader, ada, kept):
    browser = reader(ada)

    overview, pools, device = (
        html_of(browser.get(address))
        for address in (reverse("overview"), reverse("pools"), reverse("device", args=["sim-1"]))
    )

    assert "<b>0</b> of 2 GPUs free, 1 kept" in overview
    assert "FREE" not in overview
    assert re.search(r"KEPT</span>.*?for <bdi>big-7b</bdi>", overview, re.DOTALL)
    said = "Kept for big-7b (bob), when it starts is not known; a job with a time limit under"
    for page in (overview, pools, device):
        assert said in page
    assert ">free<" not in pools


def test_rest_does_not_count_it_as_free_either(reader, ada, kept):
    browser = reader(ada)
    device, pool = (browser.get(f"/api/v1{path}").json() for path in ("/devices/sim-1", "/pools/default"))

    assert device["availability"]["state"] == "kept"
    assert device["availability"]["kept_for_job"] == {"id": str(kept.pk), "name": "big-7b", "owner": "bob"}
    assert device["availability"]["open_to_jobs_under_s"] > HOUR_S
    assert (pool["free_count"], pool["available_count"]) == (1, 0)
    Job.objects.filter(pk=kept.pk).update(state=JobState.HELD)
    assert browser.get("/api/v1/devices/sim-1").json()["availability"]["state"] == "free"


def test_headline_rest_and_tiles_have_one_count(reader, ada, kept):
    browser = reader(ada)

    capacity = browser.get("/api/v1/capacity?steps=true").json()

    assert (capacity["device_count"], capacity["free_count"], capacity["kept_count"]) == (2, 0, 1)
    assert capacity["sentence"].startswith("0 of 2 GPUs free, 1 kept (free for jobs under ")
    overview = html_of(browser.get(reverse("overview")))
    assert capacity["sentence"].removeprefix("0") in overview
    (pool,) = capacity["pools"]
    assert [step["time_limit_s"] for step in pool["steps"]][:2] == [600, 2400]
    assert browser.get("/api/v1/capacity").json()["pools"] == []


def test_a_device_beyond_the_readers_limit_is_no_free_device_on_any_page(
    reader, ada, make_attempt, make_device, write_readings
):
    make_attempt(state=JobState.RUNNING, devices=[make_device(0)])
    make_device(1)
    write_readings("sim-0", "sim-1")
    Quota.objects.create(user=ada, max_devices=1)
    browser = reader(ada)

    overview, pools = (html_of(browser.get(reverse(page))) for page in ("overview", "pools"))

    assert "<b>0</b> of 2 GPUs free, 1 more than your limit of 1 device allows" in overview
    assert "AT YOUR LIMIT" in overview
    assert "FREE" not in overview
    assert "at your limit" in pools


def test_the_overview_says_from_which_length_on_a_job_waits(reader, bob, kept, make_job):
    Job.objects.filter(name="digits").update(time_limit_s=4 * HOUR_S)

    overview = html_of(reader(bob).get(reverse("overview")))

    assert "A new job on one device" in overview
    assert re.search(r"10 min</span>\s*<b", overview)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")
def test_the_tile_of_an_open_page_is_free_again_when_the_job_no_longer_waits(open_page, ada, kept):
    page = open_page(ada, "/")
    tile = page.locator("[data-device=sim-1]")
    expect(tile.locator(".tile-kept")).to_have_text("KEPT")

    Job.objects.filter(pk=kept.pk).update(state=JobState.HELD)

    expect(tile.locator(".tile-free")).to_have_text("FREE", timeout=90_000)
    expect(page.locator("#box-line")).to_contain_text("1 of 2 GPUs free")
