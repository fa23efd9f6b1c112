"""The Benchmarks page as a person uses it: ask for a grid, wait, read what came of it."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from benchmarks.browsing import chromium
from tests.conftest import lacking
from tests.system.server import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def browser() -> Iterator[Browser]:
    try:
        with chromium() as browser:
            yield browser
    except FileNotFoundError as error:
        lacking(str(error))


@pytest.mark.timeout(240)
def test_a_grid_is_run_from_the_page_and_shown_on_it(server: Server, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.port}/benchmarks")
    page.get_by_label("User name").fill("root")
    page.get_by_label("Password").fill("root's password")
    page.keyboard.press("Enter")
    for name in ("zero1", "fsdp"):
        page.locator(f"input[value={name}]").uncheck()
    page.get_by_label("Batch sizes").fill("16")
    page.get_by_label("Timed steps").fill("4")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("Measuring")).to_be_visible()

    expect(page.get_by_role("heading", name="Advice")).to_be_visible(timeout=200_000)

    expect(page.get_by_text("Take ddp on ")).to_be_visible()
    expect(page.locator("#charts figure")).to_have_count(4)
    expect(page.locator("#charts figure svg.main-svg").first).to_be_visible(timeout=20_000)
    rows = [row.replace("fastest", "").split()[:3] for row in page.locator("tbody tr").all_inner_texts()]
    assert rows == [["ddp", "1", "16"], ["ddp", "2", "16"]]
    expect(page.get_by_label("Batch sizes")).to_have_value("16")
