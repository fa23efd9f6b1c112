"""Pages at their edges: very many jobs and devices, hostile data, a wrong clock, no JavaScript."""

import dataclasses
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone
from playwright.sync_api import Route, expect

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import ExitKind, Job, JobState
from tests.dashboard.conftest import settle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    # WhiteNoise hands its files to Django as plain iterators.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
MANY_JOBS = 10_000
DEVICES = 64
LONG_NAME = "x" * 2_000_000
WRONG_CLOCK = """
const Right = Date;
globalThis.Date = class extends Right {
  constructor(...given) { given.length ? super(...given) : super(Right.now() + 3 * 3600e3); }
  static now() { return Right.now() + 3 * 3600e3; }
};
"""
ONE_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63f80f00010101"
    "00b138f6140000000049454e44ae426082"
)
ROWS_IN_SIGHT = """new Promise(done => requestAnimationFrame(() => done(
  [200, innerHeight - 20].every(y => document.elementFromPoint(600, y).closest("tr[data-job]")))))"""
MISPLACED = """() => {
  const head = document.querySelector("#jobs thead").offsetHeight;
  const top = document.querySelector("#jobs table").getBoundingClientRect().top + head;
  const rows = [...document.querySelectorAll("#jobs tr[data-job]")];
  const height = rows[0].getBoundingClientRect().height;
  const places = rows.map(row => [Number(row.ariaRowIndex) - 1, (row.getBoundingClientRect().top - top) / height]);
  return places.filter(([index, place]) => Math.abs(index - place) > 1);
}"""
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def make_copies(job: Job, count: int) -> None:
    fields = {
        field.attname: getattr(job, field.attname)
        for field in Job._meta.concrete_fields
        if field.name != "id"
    }
    Job.objects.bulk_create([Job(**{**fields, "name": f"job {number}"}) for number in range(count)], 500)


def test_ten_thousand_jobs_are_a_list_and_64_devices_a_wall(
    server, open_page, ada, make_job, make_device, write_readings
):
    make_copies(make_job(name="first"), MANY_JOBS)
    for index in range(DEVICES):
        make_device(index)
    ids = [f"sim-{index}" for index in range(DEVICES)]
    write_readings(*ids)

    page = open_page(ada, "/jobs")
    expect(page.locator("#total")).to_have_text("10,001")
    settle(page)
    page.keyboard.press("End")
    expect(page.locator('#jobs [aria-rowindex="10001"]')).to_contain_text("first")
    assert page.locator("#jobs tr[data-job]").count() <= 300
    page.goto(server.url + "/queue")
    settle(page)
    assert page.locator("tbody tr").count() < 1_000  # what is beyond is told as a number
    expect(page.locator("main")).to_contain_text("10,001")

    page.goto(server.url)
    expect(page.locator("[data-device]")).to_have_count(DEVICES)
    write_readings(*ids, seq=2, sim_63={"used_bytes": 16 << 30})
    expect(page.locator('[data-device="sim-63"] [data-memory]')).to_have_text("16.0")
    assert not page.evaluate(SIDEWAYS)


@pytest.mark.parametrize("height", [900, 2160])
def test_scrolling_down_a_long_table_reads_each_window_of_it_once(server, open_page, ada, make_job, height):
    make_copies(make_job(name="first", state=JobState.SUCCEEDED), 1_000)
    page = open_page(ada, "/account", width=1440)
    page.set_viewport_size({"width": 1440, "height": height})
    read: list[str] = []
    page.on("request", lambda sent: read.extend(parse_qs(urlsplit(sent.url).query).get("from", [])))
    page.goto(server.url + "/jobs")
    settle(page)

    page.mouse.move(600, 500)
    while not page.locator('#jobs [aria-rowindex="600"]').count():
        page.mouse.wheel(0, 120)
        page.wait_for_function(ROWS_IN_SIGHT)
    settle(page)

    assert len(read) >= 20
    assert sorted(read) == sorted(set(read))


@pytest.mark.parametrize("width", [1440, 390])
def test_rows_stand_in_their_places_though_answers_come_late_and_one_row_is_ticked(
    server, open_page, ada, make_job, width
):
    make_copies(make_job(name="first", state=JobState.SUCCEEDED), 1_000)
    page = open_page(ada, "/jobs")
    settle(page)
    page.locator(
        '#jobs [aria-rowindex="2"] [data-choose]'
    ).click()  # its row has the focus and stays in the page
    late: list[Route] = []
    page.route("**/jobs/rows?*", lambda route: late.append(route))

    for place in (2_000, 4_000, 6_000, 5_000, 4_600):
        page.evaluate(f"scrollTo(0, {place})")
        page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )  # it asks in its frame
    for route in reversed(late):
        route.continue_()
    page.unroute("**/jobs/rows?*")

    page.wait_for_function(ROWS_IN_SIGHT)
    settle(page)
    assert late
    assert page.locator('#jobs [aria-rowindex="2"] [data-choose]').is_checked()
    assert page.evaluate(MISPLACED) == []


def test_a_name_of_two_megabytes_in_the_data_breaks_no_page(
    server, open_page, ada, make_attempt, write_readings
):
    attempt = make_attempt(state=JobState.RUNNING, name=LONG_NAME)
    holder = {"job": str(attempt.job_id), "name": LONG_NAME, "owner": "ada", "rank": 0, "colour": 0}
    write_readings("sim-0", sim_0={"holders": [holder]})

    page = open_page(ada, "/account", width=390)
    for address in ("/", "/jobs", f"/jobs/{attempt.job_id}"):
        page.goto(server.url + address)
        settle(page)  # a file that is cut off is left open by the test's server
        expect(page.locator("h1")).to_be_visible()
        assert not page.evaluate(SIDEWAYS), address


def test_a_failure_that_names_a_long_path_widens_no_page_of_a_phone(
    server, open_page, ada, make_attempt, home
):
    attempt = make_attempt(state=JobState.RUNNING, owner=ada)
    words = f"unrecognized arguments: --weights=/home/lab/.berth/pushed/1/{'deep/' * 12}{'x' * 90}.pt"
    how = fact(Ended.EXITED, rank=0, exit_code=2, message=words)
    lifecycle.end(attempt, Ending(kind=ExitKind.USER_ERROR, how=how, at=timezone.now()))

    page = open_page(ada, "/account", width=390)
    for address in ("/", "/jobs", "/queue", f"/jobs/{attempt.job_id}", f"/jobs/{attempt.job_id}/history"):
        page.goto(server.url + address)
        settle(page)
        reaching = page.evaluate(
            """() => [...document.querySelectorAll("main p, main td, main li, main span, main dd")]
            .filter(one => { const box = one.getBoundingClientRect(), card = one.closest(".card")?.getBoundingClientRect();
              return card && box.width && getComputedStyle(one.parentElement).overflow === "visible" && box.right > card.right + 1
                && !one.closest(".log, pre, table") })
            .map(one => one.textContent.slice(0, 60))"""
        )
        assert (page.evaluate(SIDEWAYS), reaching) == (False, []), address


def test_a_laptop_clock_that_is_three_hours_off_shows_no_wrong_ages(
    server, open_page, ada, make_attempt, write_readings
):
    attempt = make_attempt(state=JobState.RUNNING)
    Job.objects.filter(pk=attempt.job_id).update(first_started_at=timezone.now() - timedelta(minutes=12))
    write_readings("sim-0")
    page = open_page(ada, "/account")
    page.add_init_script(WRONG_CLOCK)

    page.goto(f"{server.url}/jobs/{attempt.job_id}")
    expect(page.locator("#job-head")).to_contain_text("12 min ago")
    settle(page)  # a file that is cut off is left open by the test's server
    page.goto(server.url)
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    write_readings("sim-0", seq=2)
    expect(page.locator("#live")).to_contain_text(re.compile(r"live \d\.\d s"))


def test_without_javascript_lists_job_log_and_submit_work(
    server, open_page, ada, home, make_attempt, make_device, tmp_path
):
    attempt = make_attempt(state=JobState.RUNNING, name="tiny-gpt")
    path = home.job(attempt.job_id).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_text("step 1 loss 0.5\n")
    script = tmp_path / "train.py"
    script.write_text("print('step 1 loss 0.5')\n")

    page = open_page(ada, "/jobs", java_script_enabled=False)
    expect(page.locator("#jobs")).to_contain_text("tiny-gpt")
    page.get_by_label("Name or id").fill("nothing like it")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#jobs")).not_to_contain_text("tiny-gpt")
    for address in ("/", "/queue"):
        page.goto(server.url + address)
        expect(page.locator("main")).to_contain_text("tiny-gpt")
    page.goto(f"{server.url}/jobs/{attempt.job_id}")
    expect(page.locator("#log")).to_contain_text("step 1 loss 0.5")

    page.goto(server.url + "/submit")
    page.locator("#file").set_input_files(script)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#job h1")).to_contain_text("train")
    assert Job.objects.count() == 2


def test_a_page_too_many_says_why_it_is_not_live_and_is_when_another_closes(open_page, ada, settings):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, sockets_a_person=1)
    first = open_page(ada, "/queue")
    is_live = re.compile("live|stale")
    expect(first.locator("#live")).to_have_attribute("data-state", is_live, timeout=20_000)
    second = open_page(ada, "/queue")

    too_many = "not live: you have too many pages open, close some"
    expect(second.locator("#live")).to_contain_text(too_many, timeout=20_000)
    first.close()
    expect(second.locator("#live")).to_have_attribute("data-state", is_live, timeout=60_000)


def test_a_picture_that_a_job_wrote_is_seen_although_it_is_sent_as_an_attachment(
    open_page, ada, make_attempt, home
):
    job = make_attempt(state=JobState.RUNNING).job
    work = home.job(job.pk).work
    work.mkdir(parents=True)
    (work / "plot.png").write_bytes(ONE_PIXEL)

    page = open_page(ada, f"/jobs/{job.pk}/files")
    page.get_by_role("link", name="plot.png", exact=True).click()

    expect(page.locator(".file-preview img")).to_have_js_property("naturalWidth", 1)
