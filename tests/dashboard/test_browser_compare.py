"""Compare in Chromium: what is looked at stands in the address, so that a copied link shows the same."""

import re

import pytest
from playwright.sync_api import expect

from orchestrator.models import Job, JobState
from orchestrator.store.metrics.writer import MetricWriter, Point

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    # WhiteNoise hands its files to Django as plain iterators.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
DRAWN_MS = 30_000
ZOOMED = """async () => {
  const { charts } = await import("/static/js/charts.js");
  return [...charts][0]?.drawn?.x.range[0] > 20;
}"""


@pytest.fixture
def two(home, make_job, root) -> str:
    """The ids of two ended jobs of 100 steps, as the address has them."""
    ids = []
    for name, loss in (("one", 2.0), ("two", 1.0)):
        job = make_job(name=name, owner=root, state=JobState.SUCCEEDED, last_values={"loss": loss})
        with MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None) as writer:
            writer.append([Point("loss", step, 1000.0 + step, loss + 1 / (step + 1)) for step in range(100)])
            Job.objects.filter(pk=job.pk).update(metric_seq=writer.flush()["seq"])
        ids.append(str(job.pk))
    return ",".join(ids)


def test_hidden_lines_zoom_and_baseline_are_kept_in_the_address(open_page, root, two):
    page = open_page(root, f"/compare?jobs={two}")
    chart = page.locator("#charts figure").first
    expect(chart.locator(".chart-svg path").first).to_be_attached(timeout=DRAWN_MS)
    expect(chart.locator("tbody")).to_contain_text("two1")
    expect(chart.locator(".end-label")).to_have_text(["two", "one"])

    page.get_by_role("button", name="one", exact=True).click()
    expect(page).to_have_url(re.compile("hidden=A"))
    expect(chart.locator("tbody tr")).to_have_count(1)
    chart.focus()
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile(r"zoom=24\.75_74\.25"))
    page.get_by_label("baseline").select_option(index=1)

    expect(page).to_have_url(re.compile(r"hidden=A&zoom=24\.75_74\.25&baseline=[0-9a-f]{8}$"))
    expect(page.locator("[data-baseline]")).to_contain_text("two", timeout=DRAWN_MS)
    expect(page.get_by_role("button", name="one", exact=True)).to_have_attribute("aria-pressed", "false")
    expect(chart.locator("tbody tr")).to_have_count(1)
    page.wait_for_function(ZOOMED, timeout=DRAWN_MS)
    expect(chart.get_by_role("button", name="Back to live")).to_be_visible()


def test_what_jobs_reported_once_is_a_table_and_no_chart(open_page, home, make_job, root):
    ids = []
    for name, accuracy in (("one", [0.91]), ("two", [])):
        job = make_job(name=name, owner=root, state=JobState.SUCCEEDED)
        with MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None) as writer:
            writer.append([Point("accuracy", 7, 1000.0, value) for value in accuracy])
            writer.append([Point("loss", step, 1000.0 + step, 1.0) for step in range(3)])
            Job.objects.filter(pk=job.pk).update(metric_seq=writer.flush()["seq"])
        ids.append(str(job.pk))

    page = open_page(root, f"/compare?jobs={','.join(ids)}")

    expect(page.locator("#charts-values tbody tr")).to_have_text(["accuracy0.91"])
    expect(page.locator("#charts figure")).to_have_count(1)
    expect(page.locator(".chart.is-waiting")).to_have_count(0)
