"""The pages in a real browser: they move by themselves, go on after a restart, and run nothing that is not ours."""

import re
from itertools import count, pairwise

import pytest
from playwright.sync_api import expect

from dashboard.parts.rail import PLACES
from orchestrator.models import Job, JobState
from orchestrator.spec.job_spec import GIB
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.dashboard.conftest import settle
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    # WhiteNoise hands its files to Django as plain iterators.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
HOSTILE = "<img src=x onerror=alert(1)>"


def test_the_overview_moves_without_reload_and_goes_on_after_a_restart(
    server, open_page, ada, make_device, write_readings
):
    make_device(0)
    # Dated ahead: on a busy machine a page may take longer to open than readings stay fresh.
    write_readings("sim-0", age_s=-3600, sim_0={"used_bytes": 8 * GIB})
    page = open_page(ada, "/")
    page.evaluate("window.isTheSamePage = true")
    memory = page.locator('[data-device="sim-0"] [data-memory]')
    expect(memory).to_have_text("8.0")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")

    write_readings("sim-0", seq=2, age_s=-3600, sim_0={"used_bytes": 16 * GIB})
    expect(memory).to_have_text("16.0")

    server.stop()
    expect(page.locator("#live")).to_contain_text("reconnecting")
    server.start()
    write_readings("sim-0", seq=3, age_s=-3600, sim_0={"used_bytes": 24 * GIB})
    expect(memory).to_have_text("24.0")
    assert page.evaluate("window.isTheSamePage") is True


def test_readings_that_stop_are_called_stale_within_seconds(open_page, ada, make_device, write_readings):
    make_device(0)
    write_readings("sim-0", age_s=-10)  # time for a busy machine to open the page
    page = open_page(ada, "/")
    expect(page.locator("#live")).to_contain_text("live")

    expect(page.locator("#live")).to_contain_text("stale")
    expect(page.locator("#bands")).to_contain_text("Readings stopped at")


def test_a_job_submitted_elsewhere_appears_and_changes_state_by_itself(open_page, ada, make_job):
    page = open_page(ada, "/jobs")
    expect(page.locator("#jobs")).to_contain_text("No jobs yet")

    job = make_job(name="newcomer")
    expect(page.locator("#jobs")).to_contain_text("newcomer")
    Job.objects.filter(pk=job.pk).update(state=JobState.HELD, version=1)
    expect(page.locator("#jobs .state-held")).to_be_visible()


def test_b51_b54_a_job_page_draws_and_follows_and_everything_from_the_job_is_text(
    home, open_page, ada, make_attempt
):
    attempt = make_attempt(state=JobState.RUNNING, name=HOSTILE)
    job = attempt.job
    writer = MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None)
    writer.append([Point(name, step, 1000.0 + step, 3.0) for step in range(50) for name in ("loss", HOSTILE)])
    Job.objects.filter(pk=job.pk).update(metric_seq=writer.flush()["seq"], step=50)
    path = home.job(job.pk).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_text(f"{HOSTILE}\n\x1b[31mred\x1b[0m\n")

    page = open_page(ada, f"/jobs/{job.pk}")

    charts = page.locator("#charts figure")
    expect(charts).to_have_count(2)
    expect(charts.first.locator("figcaption b").first).to_have_text("loss")
    expect(charts.nth(1).locator("figcaption b").first).to_have_text(HOSTILE)
    expect(charts.first.locator(".chart-svg path").first).to_be_attached()
    expect(page.locator("#log")).to_contain_text(HOSTILE)
    expect(page.locator("#log .ansi-1")).to_have_text("red")
    assert page.locator("#job img").count() == 0

    writer.append([Point("loss", 50, 1050.0, 0.125)])
    Job.objects.filter(pk=job.pk).update(metric_seq=writer.flush()["seq"], step=51)
    writer.close()
    with path.open("a") as file:
        file.write("a line that came later\n")
    expect(charts.first.locator("figcaption .end")).to_have_text("0.125")
    expect(page.locator("#log")).to_contain_text("a line that came later")


def test_cancel_can_be_undone_for_five_seconds(open_page, ada, make_job):
    job = make_job(name="precious")
    page = open_page(ada, f"/jobs/{job.pk}")

    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Undo").click()
    page.wait_for_timeout(6_000)
    job.refresh_from_db()
    assert job.state == JobState.QUEUED

    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#job-head .state-cancelled")).to_be_visible()


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_every_place_is_in_the_bar_or_behind_its_last_entry(open_page, root, make_device, width):
    make_device(0)
    page = open_page(root, "/queue", width=width)
    names = [place.name for place in PLACES]
    expect(page.locator(".places span:visible")).to_have_text([*names[:4], "More"])
    assert page.locator(".places").evaluate("bar => bar.scrollWidth <= bar.clientWidth")
    more = page.get_by_role("button", name="More", exact=True)

    more.click()
    expect(page.locator("#more-places a:visible")).to_have_text(names[4:])
    page.keyboard.press("Escape")
    expect(page.locator("#more-places a:visible")).to_have_count(0)
    more.click()
    page.get_by_role("link", name="Audit", exact=True).click()
    expect(page).to_have_url(re.compile("/audit$"))
    expect(more).to_have_css("font-weight", "600")  # one of those behind it is open
    settle(page)


@pytest.mark.parametrize("width", [320, 390])
def test_no_name_in_the_bar_of_a_phone_lies_on_its_neighbour_in_german(
    server, open_page, root, make_device, width
):
    make_device(0)
    page = open_page(root, "/keys", width=width)
    page.context.add_cookies([{"name": "berth_language", "value": "de", "url": server.url}])
    page.goto(f"{server.url}/queue")
    boxes = page.locator(".places span:visible").evaluate_all(
        "names => names.map((name) => name.getBoundingClientRect()).map(({ left, right }) => [left, right])"
    )

    assert len(boxes) == 5
    assert all(one[1] <= other[0] for one, other in pairwise(boxes))
    assert boxes[0][0] >= 0
    assert boxes[-1][1] <= width
    settle(page)


def test_the_overview_needs_ten_requests_at_most(server, open_page, ada, make_device, write_readings):
    make_device(0)
    write_readings("sim-0")
    page = open_page(ada, "/account")
    asked: list[str] = []
    page.on("request", lambda seen: asked.append(seen.url))

    page.goto(server.url)
    page.wait_for_timeout(1_500)

    assert len([url for url in asked if not url.startswith("data:")]) <= 10


def test_where_no_websocket_comes_through_the_page_is_live_all_the_same(
    browser, server, open_page, ada, make_device, write_readings
):
    make_device(0)
    write_readings("sim-0", sim_0={"used_bytes": 8 * GIB})
    server.lets_sockets_in = False
    page = open_page(ada, "/")
    live, seqs = page.locator("#live"), count(2)

    def polls() -> bool:
        # Readings become stale within seconds, which a page may take to open on a busy machine.
        write_readings("sim-0", seq=next(seqs), sim_0={"used_bytes": 8 * GIB})
        return live.get_attribute("data-state") == "polling" and "polling" in live.inner_text()

    wait_until(polls, every_s=0.5)
    write_readings("sim-0", seq=next(seqs), sim_0={"used_bytes": 16 * GIB})
    expect(page.locator('[data-device="sim-0"] [data-memory]')).to_have_text("16.0")
    write_readings("sim-0", seq=next(seqs), sim_0={"used_bytes": 24 * GIB})
    expect(page.locator('[data-device="sim-0"] [data-memory]')).to_have_text("24.0")


def test_scripts_speak_the_language_of_their_page(server, open_page, home, ada, make_attempt):
    job = make_attempt(state=JobState.RUNNING, name="translated").job
    writer = MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None)
    writer.append([Point("loss", step, 1000.0 + step, 3.0 - step / 50) for step in range(50)])
    Job.objects.filter(pk=job.pk).update(metric_seq=writer.flush()["seq"], step=50)
    writer.close()
    page = open_page(ada, f"/jobs/{job.pk}")
    chart = page.locator("#charts figure").first

    def says(step: str, note: str, save: str) -> None:
        expect(chart.locator(".chart-note")).to_contain_text(note)
        expect(chart.locator("summary")).to_have_text(save)
        expect(chart.locator(".chart-values thead")).to_contain_text(step)

    says("step 49", "at step 49, falling", "Save or copy loss")
    assert page.evaluate("globalThis.berthWords") is None

    page.context.add_cookies([{"name": "berth_language", "value": "de", "url": server.url}])
    page.reload()
    says("Schritt 49", "(Schritt 49), gefallen um", "Speichern oder kopieren: loss")
    page.keyboard.press("Control+k")
    expect(page.locator("dialog.palette")).to_have_attribute("aria-label", "Suchen oder ausführen")
    page.keyboard.press("Escape")
    expect(page.locator("#live")).to_contain_text(re.compile("^(live|veraltet|verbindet|fragt ab)"))
    page.goto(f"{server.url}/jobs")
    page.get_by_role("link", name="translated").first.focus()
    page.keyboard.press("x")
    expect(page.locator("#toasts")).to_contain_text("translated wird in 5 s abgebrochen.")
    page.get_by_role("button", name="Rückgängig").click()
    expect(page.locator("time[data-relative]").first).to_have_text(re.compile("^(jetzt|vor |in )"))
