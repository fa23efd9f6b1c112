"""The page of a sweep in a real browser: axes that filter everything, by pointer and keys, and news while it runs."""

import pytest
from playwright.sync_api import expect

from benchmarks.played_sweeps import play
from dashboard.parts.sweep_rows import rows_of
from orchestrator.models import Dataset, DatasetRoot, RungReport, SweepTrial
from tests.dashboard.conftest import settle
from tests.dashboard.test_browser_axe import violations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


# Until an element is at the same place in two frames that lie apart; charts that are drawn above it move it.
STANDS_STILL = """async (one) => {
  for (let before = ""; ; ) {
    const { x, y } = one.getBoundingClientRect();
    if (before === `${x} ${y}`) return;
    before = `${x} ${y}`;
    await new Promise((go) => setTimeout(go, 200));
  }
}"""


@pytest.mark.parametrize("width", [1440, 390])
def test_a_sweep_without_a_report_is_drawn_by_its_settings(open_page, ada, width):
    sweep = play(ada, 3, state="running", all_failed=True, curves=False)

    page = open_page(ada, f"/sweeps/{sweep.pk}", width=width)

    expect(page.locator("#parallel canvas")).to_be_visible()
    expect(page.locator("#charts")).to_be_hidden()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_choosing_a_dataset_in_the_form_adds_its_path_to_the_arguments(open_page, ada, tmp_path):
    root = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    Dataset.objects.create(name="words", version="1", root=root, path="words", owner=ada)
    page = open_page(ada, "/sweeps/new", width=390)

    arguments = page.get_by_label("Arguments", exact=True)
    arguments.fill("--epochs 3")

    page.get_by_label("Datasets").select_option("words@1")

    expect(arguments).to_have_value("--epochs 3 --data {dataset:words}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_axis_filters_the_table_and_what_is_compared(open_page, ada, make_device):
    make_device(0)
    sweep = play(ada, 30)
    sweep.further = [{"name": "params", "direction": "minimize"}]
    sweep.save()
    for report in RungReport.objects.filter(trial__sweep=sweep).select_related("trial"):
        report.further = [1000 - report.trial.number]
        report.save()
    page = open_page(ada, f"/sweeps/{sweep.pk}", width=390)
    expect(page.locator("#fronts canvas")).to_have_count(1)
    drawn = (
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    )
    assert page.locator("#fronts canvas").evaluate(drawn)
    rows = page.locator("#trials-table tbody tr:visible")
    expect(page.locator("#slices canvas")).to_have_count(6)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    axis = page.get_by_role("button", name="Filter by val/loss")
    settle(page)
    axis.scroll_into_view_if_needed()
    axis.evaluate(STANDS_STILL)
    box = axis.bounding_box()
    assert box is not None
    axis.hover(position={"x": 8, "y": box["height"] * 0.5})
    page.mouse.down()
    page.mouse.move(box["x"] + 8, box["y"] + box["height"] + 20)  # below its end
    page.mouse.up()

    values = [row.value for row in rows_of(sweep) if row.value is not None]
    limit = (min(values) + sorted(values)[-1 - len(values) // 20]) / 2
    fewer = sum(value <= limit for value in values)
    expect(page.locator("#chosen")).to_have_text(f"{fewer} of 30")
    expect(rows).to_have_count(fewer)
    assert page.locator("#compare").get_attribute("href") != "/compare?jobs="
    page.get_by_role("button", name="Clear filters").click()
    expect(rows).to_have_count(30)

    page.get_by_role("button", name="Filter by optimizer").press("ArrowDown")
    adam = SweepTrial.objects.filter(sweep=sweep, settings__optimizer="adam").count()
    expect(page.locator("#sweep-said")).to_contain_text("optimizer adam")
    expect(rows).to_have_count(adam)
    page.keyboard.press("Escape")
    expect(rows).to_have_count(30)
    assert violations(page) == []


def test_a_running_sweep_moves_by_itself(open_page, ada, make_device):
    make_device(0)
    sweep = play(ada, 6, state="running")
    page = open_page(ada, f"/sweeps/{sweep.pk}", color_scheme="dark")
    settle(page)
    page.evaluate("window.isTheSamePage = true")

    trial = SweepTrial.objects.get(sweep=sweep, number=5)
    RungReport.objects.create(trial=trial, rung=90, value=0.0125)

    expect(page.locator(".sweep-value")).to_have_text("0.0125")
    expect(page.locator("#trials-table tbody tr").first).to_contain_text("0.0125 at 90")
    assert page.evaluate("window.isTheSamePage") is True
    assert violations(page) == []
