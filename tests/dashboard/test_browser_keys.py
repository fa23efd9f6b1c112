"""Everything from the keyboard, in a real browser."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Route, expect

from orchestrator.models import Job, JobState
from tests.dashboard.conftest import settle, wait_for_request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


def test_three_jobs_are_chosen_and_compared_from_the_keyboard(open_page, ada, make_job):
    for name in ("one", "two", "three"):
        make_job(name=name)
    page = open_page(ada, "/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")

    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile("/jobs$"))
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    for number in range(3):
        page.keyboard.press("j")
        expect(page.locator("tr[data-job]").nth(number).locator("th a")).to_be_focused()
        page.keyboard.press("s")
        expect(page.locator("#chosen-count")).to_have_text(f"{number + 1} chosen")
    page.keyboard.press("=")
    expect(page).to_have_url(re.compile(r"/compare\?jobs=[0-9a-f]{8},[0-9a-f]{8},[0-9a-f]{8}$"))
    expect(page.locator("#comparison thead a bdi")).to_have_text(["three", "two", "one"])


def test_a_quick_enter_opens_what_the_key_before_it_chose(server, open_page, ada, make_job):
    job = make_job(name="wanted")
    page = open_page(ada, "/account")
    held: list[Route] = []
    page.route(re.compile(r"/keys\b.*\.js"), lambda route: held.append(route))
    page.goto(server.url + "/jobs")  # a page that is open may still ask past a new route
    settle(page)

    page.keyboard.press("j")
    page.keyboard.press("Enter")
    wait_for_request(page, held)
    held[0].continue_()

    expect(page).to_have_url(re.compile(f"/jobs/{job.pk}$"))
    settle(page)


def test_x_cancels_after_five_seconds_and_u_undoes(open_page, ada, make_job):
    make_job(name="precious")
    page = open_page(ada, "/jobs")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")

    page.keyboard.press("j")
    expect(page.locator("tr[data-job] th a").first).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator(".toast")).to_contain_text("Cancelling precious in 5 s.")
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_have_count(0)
    page.wait_for_timeout(5_500)
    assert Job.objects.get().state == JobState.QUEUED


def test_the_palette_finds_a_job_and_opens_it(open_page, ada, make_job):
    job = make_job(name="<b>needle</b>")
    make_job(name="hay")
    page = open_page(ada, "/queue")
    expect(page.locator("#palette-open")).to_be_visible()

    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Search or run")).to_be_focused()
    page.keyboard.type("needle")
    expect(page.get_by_role("option")).to_have_count(1)
    expect(page.get_by_role("option")).to_contain_text("<b>needle</b>")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/jobs/{job.pk}$"))
    settle(page)  # files on their way would be left open


def test_the_palette_changes_the_theme_and_the_next_page_keeps_it(server, open_page, ada):
    page = open_page(ada, "/keys")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")

    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search or run").fill("dark th")
    page.get_by_role("option", name="Dark theme").click()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.goto(f"{server.url}/account")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    settle(page)


def test_the_palette_says_that_it_searches_until_the_server_has_answered(server, open_page, ada):
    page = open_page(ada, "/account")
    held: list[Route] = []
    page.route(re.compile(r"/api/v1/search\?q=zzz"), lambda route: held.append(route))
    page.goto(server.url + "/jobs")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")

    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search or run").fill("zzz")
    expect(page.locator("#palette-none")).to_have_text("Searching ...")
    wait_for_request(page, held)
    held.pop().continue_()
    expect(page.locator("#palette-none")).to_contain_text("Nothing has this name.")
    page.get_by_role("combobox", name="Search or run").fill("zzzz")
    expect(page.locator("#palette-none")).to_have_text("Searching ...")
    wait_for_request(page, held)
    held.pop().abort("connectionrefused")
    expect(page.locator("#palette-none")).to_contain_text("The server did not answer")


def test_keys_do_nothing_in_a_field_or_where_they_are_switched_off(open_page, ada, make_job):
    page = open_page(ada, "/jobs")
    expect(page.locator("#palette-open")).to_be_visible()
    page.locator("#q").press_sequentially("c")
    page.wait_for_timeout(300)
    expect(page).to_have_url(re.compile("/jobs"))

    page.goto(page.url.split("/jobs")[0] + "/account")
    page.get_by_label("Single-key shortcuts").uncheck()
    page.get_by_role("button", name="Save", exact=True).click()
    page.keyboard.press("c")
    page.wait_for_timeout(300)
    expect(page).to_have_url(re.compile("/account$"))
    page.goto(page.url.replace("/account", "/jobs"))
    page.locator("h1").click()
    page.keyboard.press("c")
    page.wait_for_timeout(300)
    expect(page).to_have_url(re.compile("/jobs$"))


def test_a_job_that_fails_is_told_on_whatever_page_one_is(open_page, ada, make_job):
    job = make_job(name="unlucky")
    page = open_page(ada, "/queue")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    page.wait_for_timeout(1_500)

    Job.objects.filter(pk=job.pk).update(state=JobState.FAILED, version=1)

    Job.objects.filter(pk=job.pk).update(ended_at=job.queued_at)
    expect(page.locator(".toast")).to_contain_text("unlucky failed.")
    page.keyboard.press("F6")
    expect(page.get_by_role("button", name="Open")).to_be_focused()


def test_a_loss_that_is_no_number_and_steps_that_stop_are_told_at_once(open_page, ada, make_job):
    now = timezone.now()
    fields = {
        "state": JobState.RUNNING,
        "step": 9,
        "queued_at": now - timedelta(hours=1),
        "last_report_at": now,
    }
    broken, silent = make_job(name="broken", **fields), make_job(name="silent", **fields)
    page = open_page(ada, "/queue")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    page.wait_for_timeout(1_500)

    Job.objects.filter(pk=broken.pk).update(diverged_step=9)
    Job.objects.filter(pk=silent.pk).update(last_report_at=now - timedelta(minutes=11))

    for text in ("broken has a loss that is no number.", "silent has reported nothing for 10 min."):
        expect(page.locator(".toast", has_text=text)).to_have_count(1)


@pytest.mark.parametrize("menu", ["#job-menu", "#columns-menu"])
def test_a_menu_closes_by_escape_and_by_a_click_elsewhere(open_page, ada, make_job, menu):
    job = make_job(name="one")
    page = open_page(ada, f"/jobs/{job.pk}" if menu == "#job-menu" else "/jobs")
    opened = page.locator(f"{menu}[open]")

    page.locator(f"{menu} > summary").click()
    expect(opened).to_have_count(1)
    page.keyboard.press("Escape")
    expect(opened).to_have_count(0)
    expect(page.locator(f"{menu} > summary")).to_be_focused()
    page.keyboard.press("Enter")
    expect(opened).to_have_count(1)
    page.locator("#main").click(position={"x": 4, "y": 400})
    expect(opened).to_have_count(0)
