"""The chart tools of a job's page in Chromium: cursor, smoothing, scale, zoom, seams, export."""

import csv
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Page, Route, expect

from orchestrator.agent.run_values import storable
from orchestrator.models import Attempt, AttemptState, Job, JobState
from orchestrator.store.metrics.writer import MetricWriter, points_of
from tests.dashboard.conftest import wait_for_request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    # WhiteNoise hands its files to Django as plain iterators.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
NAN = float("nan")
DRAWN_MS = 30_000
DRAWN = """async name => {
  const { charts } = await import("/static/js/charts.js");
  const { data, layout, x } = [...charts].find(({ title }) => title === name).drawn;
  return { x: data.map(one => one.x.length), range: x.range, y: layout.yaxis.type,
           alpha: data.map(one => one.line?.color ?? ""), seams: layout.shapes.map(one => one.x0) };
}"""


@pytest.fixture
def job(home, make_attempt) -> Job:
    """2,000 steps; the second attempt repeats 1,000 to 1,499; one NaN, one spike, one series below zero."""
    job: Job = make_attempt(state=JobState.RUNNING, name="curves").job
    for number, steps in ((1, range(2000)), (2, range(1000, 1500))):
        with MetricWriter(home.job(job.pk).metrics, number, 1000.0 * number, None) as writer:
            for step in steps:
                loss = NAN if step in (70, 71) else 99.0 if step == 1234 else 2.0 + math.sin(step / 50)
                values = {"loss": loss, "balance": math.sin(step / 90) * 1000, "lr": 0.1}
                writer.append(points_of(step, 1000.0 * number + step / 100, values))
            Job.objects.filter(pk=job.pk).update(metric_seq=writer.flush()["seq"])
    Attempt.objects.filter(job=job).update(state=AttemptState.ENDED, ended_at=timezone.now())
    Attempt.objects.create(
        job=job,
        number=2,
        nonce="0" * 32,
        created_at=timezone.now(),
        started_at=datetime.fromtimestamp(2000, tz=UTC),
        resumed_from_step=1000,
    )
    return job


def drawn(page: Page, name: str):
    return page.evaluate(DRAWN, name)


def wait_until(page: Page, name: str, holds: Callable[..., bool]):
    for _ in range(150):
        found = drawn(page, name)
        if holds(found):
            return found
        page.wait_for_timeout(200)
    raise AssertionError(found)


def test_b47_charts_are_read_by_pointer_keys_and_ear_and_leave_as_files(open_page, ada, job, tmp_path):
    page = open_page(ada, f"/jobs/{job.pk}", accept_downloads=True)
    loss = page.locator("#charts figure").filter(has=page.get_by_text("loss", exact=True))
    lr = page.locator("#charts figure").filter(has=page.get_by_text("lr", exact=True))
    for figure in (loss, lr):
        figure.scroll_into_view_if_needed()
        expect(figure.locator(".chart-svg path").first).to_be_attached(timeout=DRAWN_MS)

    # In words: what is not a number, the attempt that resumed; the tail it has not reached yet is faint.
    expect(loss.locator(".chart-note")).to_contain_text("2 not a number, first at step 70")
    expect(loss.locator(".chart-note")).to_contain_text("attempt 2 from step 1,000")
    assert loss.get_attribute("aria-describedby") == loss.locator(".chart-note").get_attribute("id")
    expect(loss.locator(".chart-note")).to_contain_text("at step 1,499")
    before = drawn(page, "loss")
    assert before["seams"] == [1000]
    assert any(colour.endswith("0.25)") for colour in before["alpha"])

    # The cursor goes over all charts, by keys and by pointer.
    loss.focus()
    page.keyboard.press("Home")
    for figure in (loss, lr):
        expect(figure.locator(".chart-values thead th").first).to_have_text("step 0")
        expect(figure.locator(".chart-cursor")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(lr.locator(".chart-values thead th").first).to_have_text("step 4")
    box = loss.locator(".chart-plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(lr.locator(".chart-values thead th").first).not_to_have_text("step 4")

    # Smoothing leaves the raw line faint, and is there after the next opening.
    page.locator("#chart-smooth").fill("0.9")
    expect(page.locator("#chart-smooth-shown")).to_have_text("0.90")
    expect(loss.locator(".chart-values.is-smoothed td").nth(1)).not_to_be_empty()
    wait_until(page, "loss", lambda now: len(now["x"]) > len(before["x"]))

    # A spike is told when it is left out; a logarithm of what is negative is symmetric.
    page.locator("#chart-outliers").check()
    expect(loss.locator(".chart-note")).to_contain_text("reach outside the 1st to 99th percentile")
    page.locator("#chart-log").check()
    balance = page.locator("#charts figure").filter(has=page.get_by_text("balance", exact=True))
    expect(balance.locator(".chart-note")).to_contain_text("symmetric log")
    wait_until(page, "loss", lambda now: now["y"] == "log")

    # A zoom asks the server for its window: every step is a point of its own.
    loss.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("+")
    expect(loss.get_by_role("button", name="Back to live")).to_be_visible()
    expect(loss.locator(".chart-note")).not_to_contain_text("buckets", timeout=DRAWN_MS)
    assert wait_until(page, "loss", lambda now: now["range"][1] < 260)["range"][0] >= -10
    page.locator("#chart-reset").click()
    expect(loss.get_by_role("button", name="Back to live")).to_be_hidden()
    wait_until(page, "loss", lambda now: now["range"][1] > 1900 and now["y"] == "linear")
    expect(page.locator("#chart-smooth-shown")).to_have_text("0.00")

    # T opens the numbers; they leave as CSV with every point, and as pictures.
    loss.focus()
    page.keyboard.press("t")
    dialog = page.get_by_role("dialog", name="Values of loss")
    expect(dialog.locator("tbody tr").first).to_contain_text("2")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(loss).to_be_focused()
    for name, starts in (
        ("CSV of all points", b"series,attempt,step"),
        ("PNG picture", b"\x89PNG"),
        ("SVG picture", b"<svg"),
    ):
        loss.locator("summary").click()
        with page.expect_download(timeout=DRAWN_MS) as download:
            loss.locator(".chart-menu").get_by_text(name).click()
        path = tmp_path / "file"
        download.value.save_as(path)
        assert path.read_bytes().startswith(starts), name
        if name.startswith("CSV"):
            assert count_rows(path) == 1 + 2000 + 500

    # Since its start: minutes, the second attempt after the first.
    page.locator("#chart-x").select_option("relative")
    expect(lr.locator(".chart-values thead th").first).to_contain_text("after", timeout=DRAWN_MS)
    wait_until(page, "lr", lambda now: 16 < now["range"][1] < 18)


def count_rows(path: Path) -> int:
    with path.open(newline="") as file:
        return sum(1 for _ in csv.reader(file))


def test_smoothing_is_kept_for_the_next_page(open_page, ada, job):
    page = open_page(ada, f"/jobs/{job.pk}")
    page.locator("#chart-smooth").fill("0.6")
    page.reload()

    expect(page.locator("#chart-smooth-shown")).to_have_text("0.60")


def store(home, job, values: dict[str, list[float]]) -> None:
    """A point a step, as the agent leaves them."""
    with MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None) as writer:
        for name, points in values.items():
            for step, value in enumerate(points):
                writer.append(points_of(step, 1000.0 + step, {name: value}))
        seq = writer.flush()["seq"]
    last = {name: storable(points[-1]) for name, points in values.items()}
    Job.objects.filter(pk=job.pk).update(metric_seq=seq, last_values=last)


def test_b47_a_series_without_any_number_is_drawn(open_page, ada, home, make_attempt):
    job = make_attempt(state=JobState.RUNNING).job
    store(home, job, {"loss": [NAN, NAN, NAN]})

    page = open_page(ada, f"/jobs/{job.pk}")

    figure = page.locator("#charts figure")
    expect(figure.locator(".chart-svg path").first).to_be_attached(timeout=DRAWN_MS)
    expect(figure.locator(".chart-note")).to_contain_text("NaN at step 2; 3 not a number, first at step 0")


def test_series_of_one_point_are_rows_of_a_table_and_no_charts(open_page, ada, home, make_attempt):
    job = make_attempt(state=JobState.RUNNING).job
    store(home, job, {"loss": [2.5, 2.4], "accuracy": [0.91], "f1": [NAN]})

    page = open_page(ada, f"/jobs/{job.pk}")

    expect(page.locator("#charts figure")).to_have_count(1)
    expect(page.locator("#values tbody tr")).to_have_text(["accuracy0.91step 0", "f1NaNstep 0"])
    expect(page.locator("#charts-empty")).to_be_hidden()


def test_the_last_value_is_the_last_point_in_list_head_chart_table_and_compare(
    open_page, ada, home, make_attempt
):
    job = make_attempt(state=JobState.RUNNING).job
    falling = [3.0 - step / 1000 for step in range(2000)]
    store(home, job, {"train/loss": [*falling, NAN], "val/loss": [1.263, 1.263], "other": [*falling, 7.125]})

    page = open_page(ada, f"/jobs/{job.pk}")

    expect(page.locator("#job-head [data-loss]")).to_have_text("train/loss NaN")
    loss = page.locator("#charts figure").filter(has=page.get_by_text("train/loss", exact=True))
    expect(loss.locator("figcaption")).to_contain_text("train NaN")
    loss.scroll_into_view_if_needed()
    expect(loss.locator(".chart-values tbody tr").first.locator("td").first).to_have_text(
        "NaN", timeout=DRAWN_MS
    )
    expect(loss.locator(".chart-note")).to_contain_text("NaN at step 2,000")
    other = page.locator("#charts figure").filter(has=page.get_by_text("other", exact=True))
    expect(other.locator("figcaption")).to_contain_text("7.125")
    other.scroll_into_view_if_needed()
    expect(other.locator(".chart-values tbody td").first).to_have_text("7.125", timeout=DRAWN_MS)
    expect(other.locator(".chart-values thead th").nth(1)).to_have_text("last")
    page.goto(page.url.partition("/jobs/")[0] + "/jobs")
    expect(page.locator("[data-loss]")).to_have_text("NaN")
    expect(page.locator("[data-loss-name]")).to_have_text("train/loss")
    page.goto(page.url.partition("/jobs")[0] + f"/compare?jobs={job.pk}&all=1")
    expect(page.locator("#comparison tr", has_text="train/loss").locator("td")).to_have_text("NaN")
    expect(page.locator("#charts figure figcaption", has_text="other")).to_contain_text("7.125")


def test_without_scripts_a_job_with_numbers_shows_them_and_not_that_there_are_none(
    open_page, ada, home, make_attempt
):
    job = make_attempt(state=JobState.RUNNING).job
    store(home, job, {"loss": [2.5, 2.4]})

    page = open_page(ada, f"/jobs/{job.pk}", java_script_enabled=False)

    expect(page.locator("#values tbody tr")).to_have_text(["loss2.4"])
    expect(page.get_by_text("No numbers")).to_be_hidden()
    expect(page.get_by_role("link", name="All 2 points as CSV")).to_be_visible()
    page.goto(page.url.partition("/jobs/")[0] + f"/compare?jobs={job.pk}")
    expect(page.get_by_text("No numbers")).to_be_hidden()
    expect(page.locator("#charts-asked")).to_be_visible()


def test_a_job_that_reports_nothing_says_how_to_report(open_page, ada, make_attempt):
    job = make_attempt(state=JobState.RUNNING).job

    page = open_page(ada, f"/jobs/{job.pk}/charts", java_script_enabled=False)

    expect(page.get_by_text("No numbers yet")).to_be_visible()
    expect(page.locator("#values")).to_be_hidden()


def test_while_numbers_are_asked_for_nobody_is_told_that_there_are_none(
    server, open_page, ada, home, make_attempt
):
    job = make_attempt(state=JobState.RUNNING).job
    store(home, job, {"loss": [2.5, 2.4]})
    page = open_page(ada, "/account")
    held: list[Route] = []
    page.route(re.compile(r"/metrics\?"), lambda route: held.append(route))

    page.goto(f"{server.url}/jobs/{job.pk}")
    wait_for_request(page, held)
    expect(page.locator("#values tbody tr")).to_have_text(["loss2.4"])
    expect(page.locator("#charts-empty")).to_be_hidden()
    held.pop().continue_()
    expect(page.locator("#charts figure")).to_have_count(1)
    expect(page.locator("#values")).to_be_hidden()

    page.locator("#chart-x").select_option("time")
    wait_for_request(page, held)
    expect(page.locator("#charts-empty")).to_be_hidden()
    held.pop().continue_()


def test_a_constant_stands_in_the_middle_of_an_axis_that_shows_how_large_it_is(open_page, root):
    constants = [[0.0003] * 3, [-2, None, -2]]
    others = [[0, 0], [None], [1, 2]]

    axes = open_page(root, "/keys").evaluate(
        """async all => {
          const { scaleOf } = await import("/static/js/chart-data.js");
          return all.map((y) => scaleOf([{ data: { y } }], { logScale: false, clips: false, fromZero: false }, String).axis);
        }""",
        constants + others,
    )

    assert [axis["range"] for axis in axes[:2]] == [pytest.approx([0.00015, 0.00045]), [-3, -1]]
    assert axes[2:] == [{"rangemode": "normal"}] * 3
