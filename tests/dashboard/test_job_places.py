"""The places of a job's page: each has an address, and the first one fits the job's state."""

import re

import pytest
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import expect

from berth.shared import words
from dashboard.parts.job_places import PLACES
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Job, JobState
from orchestrator.store.logs.lines import LineIndex
from orchestrator.store.metrics.writer import MetricWriter, points_of
from tests.dashboard.conftest import settle
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = 2_000
# Without those of the whole page: a band above it says that this server has no Redis.
SHIFTS = """() => new Promise(done => {
  let sum = 0;
  const whole = (entry) => entry.sources.some((source) => source.node?.classList?.contains("page"));
  const add = (list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput && !whole(entry)) sum += entry.value;
  };
  new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 200);
})"""


@pytest.fixture
def curves(home, make_attempt, store_script) -> Job:
    """A running job with ten curves, a value that came once, and a line of its log for each step."""
    code = {"bundle": store_script(b"print('step 1')\n"), "spec": {"entrypoint": "train.py"}}
    job: Job = make_attempt(state=JobState.RUNNING, name="curves", **code).job
    folder = home.job(job.pk).attempt(1)
    folder.logs.mkdir(parents=True)
    folder.log(0).write_text("".join(f"step {step} loss {1 / (step + 1):.4f}\n" for step in range(STEPS)))
    LineIndex(folder.log(0), folder.log_index(0)).extend(2000.0)
    with MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None) as writer:
        for step in range(STEPS):
            values = {f"train/{name}": step % 7 + 0.5 for name in ("loss", "a", "b", "c", "d")}
            values |= {f"val/{name}": 1 / (step + 1) for name in ("loss", "e", "f", "g", "h")}
            writer.append(points_of(step, 1000.0 + step, values | ({"params": 7.0} if not step else {})))
        seq = writer.flush()["seq"]
    Job.objects.filter(pk=job.pk).update(
        metric_seq=seq, last_values={"train/loss": 0.5, "train/a": 0.5, "params": 7.0}
    )
    return job


def place_of(page: str) -> str:
    found = re.search(r'id="job-body" data-place="(\w+)"', page)
    assert found
    return found[1]


def test_system_shows_where_the_time_of_a_profile_goes(reader, ada, curves):
    parts = {"compute_s": 0.5, "copy_s": 0.0, "exchange_s": 0.0, "data_s": 0.38, "idle_s": 0.12}
    told = fact(
        Happened.RUN_PROFILED, steps=10, wall_s=1.0, **parts, device="cpu", trace="profile/trace-1.json.gz"
    )
    lifecycle.remark(curves, told, actor="attempt 1")

    page = html_of(reader(ada).get(reverse("job-place-system", args=[curves.pk])))

    assert "waits for data 38 %" in page
    assert '<rect class="is-data" x="50.00" y="0" height="10" width="38.00"' in " ".join(page.split())
    assert f"/api/v1/jobs/{curves.pk}/files/profile/trace-1.json.gz?folder=output" in page
    assert 'data-action="profile"' in page


@pytest.mark.parametrize("place", PLACES)
def test_each_place_has_an_address(reader, ada, curves, place):
    page = html_of(reader(ada).get(reverse(f"job-place-{place}", args=[curves.pk])))

    assert place_of(page) == place
    assert re.search(rf'data-place="{place}" aria-keyshortcuts="\d" aria-current="page"', page)


def test_nobody_elses_places_are_there(reader, bob, curves):
    browser = reader(bob)

    answers = [browser.get(reverse(f"job-place-{place}", args=[curves.pk])) for place in PLACES]

    assert {answer.status_code for answer in answers} == {404}
    assert browser.get(reverse("job-log-place", args=[curves.pk]) + "?step=1").status_code == 404


def test_the_first_place_fits_the_state(reader, ada, curves, make_job, make_attempt):
    silent = make_attempt(state=JobState.RUNNING).job
    browser = reader(ada)

    first = [
        place_of(html_of(browser.get(reverse("job", args=[job.pk])))) for job in (make_job(), silent, curves)
    ]

    assert first == ["code", "log", "charts"]


def test_the_grid_of_the_charts_is_there_before_a_script_has_read_a_number(reader, ada, curves):
    page = html_of(reader(ada).get(reverse("job", args=[curves.pk])))

    assert re.findall(r'data-section="(\w*)"', page) == ["train", "val"]
    assert re.findall(r'data-chart="([\w/]+)"', page) == [
        *("train/loss", "train/a", "train/b", "train/c", "train/d"),
        *("val/e", "val/f", "val/g", "val/h"),
    ]


def test_the_log_place_of_a_step_is_its_line(reader, ada, curves):
    address = reverse("job-log-place", args=[curves.pk])
    browser = reader(ada)

    assert browser.get(f"{address}?step=1234&attempt=1&rank=0").json() == {"line": 1234, "exact": True}
    assert browser.get(f"{address}?step=nan&attempt=1&rank=0").json() == {"line": None}
    assert browser.get(f"{address}?step=1&rank=9").status_code == 404


def test_a_waiting_job_takes_a_change_that_would_start_it_in_place(reader, ada, make_job):
    job = make_job()
    browser, address = reader(ada), reverse("job-act", args=[job.pk, "change"])

    browser.post(address, {"field": "time_limit_h", "value": "2"})
    refused = browser.post(address, {"field": "gpus", "value": "1"}, headers={"X-Requested-With": "fetch"})
    empty = browser.post(address, {"field": "priority", "value": ""}, headers={"X-Requested-With": "fetch"})

    job.refresh_from_db()
    assert job.time_limit_s == 7200
    assert refused.status_code == empty.status_code == 400
    assert "clone the job" in refused.json()["detail"]


def test_code_shows_the_script_as_it_was_kept(reader, ada, curves):
    browser, address = reader(ada), reverse("job-place-code", args=[curves.pk])

    page = html_of(browser.get(address))

    assert '<span id="line-1">print(&#x27;step 1&#x27;)' in page
    assert "print(&#x27;step 1&#x27;)" in html_of(browser.get(f"{address}?path=../../etc/passwd"))


slow = [
    pytest.mark.slow,
    # WhiteNoise hands its files to Django as plain iterators.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


# Whether the chart's cursor and the log's line show the same step.
SAME_STEP = """() => {
  const shown = document.querySelector('#charts figure .chart-values thead th').textContent.match(/step ([\\d,]+)/);
  const line = document.querySelector('#log .is-pointed');
  return shown && line && line.textContent.includes(`step ${shown[1].replaceAll(',', '')} loss`);
}"""


@pytest.mark.parametrize("width", [pytest.param(1440, marks=slow)])
def test_places_change_by_key_and_address_and_one_cursor_joins_chart_and_log(open_page, ada, curves, width):
    page = open_page(ada, f"/jobs/{curves.pk}", width=width)
    log, chart = page.locator("#log"), page.locator("#charts figure").first
    expect(chart.locator(".chart-svg path").first).to_be_attached()
    expect(log.locator(".line").last).to_contain_text("step 1999")
    assert page.evaluate(SHIFTS) < 0.05

    chart.focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowLeft")
    at = chart.locator(".chart-values thead th").first
    expect(at).to_contain_text("step 1,")
    page.wait_for_function(SAME_STEP)  # each key moves both, one after the other
    step = int(at.inner_text().removeprefix("step ").replace(",", ""))

    log.locator(".line", has_text=f"step {step - 5} ").hover()
    expect(at).not_to_have_text(f"step {step:,}")

    page.locator("h1").click()
    page.keyboard.press("5")
    expect(page).to_have_url(re.compile("/code$"))
    expect(page.locator(".source")).to_contain_text("print('step 1')")
    expect(chart).to_be_hidden()
    page.go_back()
    expect(chart).to_be_visible()
    page.goto(f"{page.url.removesuffix('/code')}#L10-L12")
    settle(page)
    expect(log.locator(".is-linked")).to_have_count(3)


@pytest.mark.parametrize("width", [pytest.param(390, marks=slow)])
def test_on_a_phone_a_long_name_and_a_failure_fit(open_page, ada, make_job, width):
    job = make_job(
        name="n" * 200,
        state=JobState.FAILED,
        exit_kind="user_error",
        ended_at=timezone.now(),
        attempt_count=1,
    )

    page = open_page(ada, f"/jobs/{job.pk}", width=width)
    settle(page)

    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator("#job-menu summary").click()
    expect(page.get_by_role("link", name="Clone and edit")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Clone and edit")).to_be_hidden()


@pytest.mark.parametrize("width", [pytest.param(1440, marks=slow)])
def test_charts_are_found_enlarged_and_reckoned_and_a_link_shows_the_same(
    server, open_page, ada, curves, width
):
    page = open_page(
        ada, f"/jobs/{curves.pk}?charts=loss&size=large&formula=train/loss - val/loss * 2", width=width
    )
    charts = page.locator("#charts figure:visible figcaption > b:first-child")
    expect(charts).to_have_text(["train/loss"])
    own = page.locator("#chart-own figure")
    expect(own.locator("figcaption .end")).to_have_text("4.499")
    expect(page.locator("#charts")).to_have_class("is-large")
    expect(page.locator("#charts .chart-extremes").first).to_contain_text("highest 6.5 near step")

    numbers = [3e-6, 3e-4, 0.00012345, 1e-3, 0.5, 42.0, 1234567.8, 2.5e15]
    said = page.evaluate("async all => all.map((await import('/static/js/words.js')).value)", numbers)
    assert said == [words.value(number) for number in numbers]

    page.get_by_label("Find a chart").fill("nothing like it")
    expect(page.locator("#chart-found")).to_have_text("No chart has this name.")
    page.get_by_label("Find a chart").fill("")
    page.get_by_label("Formula").fill("train/loss - - nonsense")
    expect(page.locator("#chart-formula-said")).to_contain_text("Write names of metrics")
    page.get_by_label("Formula").fill("")
    page.get_by_label("order").select_option("name")
    expect(charts).to_have_count(9)
    expect(page).to_have_url(f"{server.url}/jobs/{curves.pk}?size=large&order=name")
