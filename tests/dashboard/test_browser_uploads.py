"""Uploading data in a real browser."""

import os

import pytest
from playwright.sync_api import Route, expect

from orchestrator.jobs import datasets, pushing
from orchestrator.models import Dataset

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


def test_upload_goes_on_after_a_dropped_connection_and_is_removed_again(
    home, open_page, ada, tmp_path, monkeypatch
):
    monkeypatch.setattr(pushing, "PART_BYTES", 100_000)
    (tmp_path / "digits" / "more").mkdir(parents=True)
    content = os.urandom(250_000)
    (tmp_path / "digits" / "train.bin").write_bytes(content)
    (tmp_path / "digits" / "more" / "empty.txt").write_bytes(b"")
    page = open_page(ada, "/datasets")
    dropped: list[str] = []

    def drop_second(route: Route) -> None:
        if "offset=100000" in route.request.url and not dropped:
            dropped.append(route.request.url)
            route.abort("connectionfailed")
        else:
            route.continue_()

    page.route("**/api/v1/uploads/**", drop_second)
    page.locator("#upload-name").fill("digits")
    page.locator("#upload-folder").set_input_files(tmp_path / "digits")
    page.get_by_role("button", name="Upload", exact=True).click()
    page.wait_for_url("**/datasets?q=digits")

    expect(page.get_by_role("row", name="digits")).to_contain_text("pushed, for your jobs only")
    assert len(dropped) == 1
    path = datasets.checked_path(datasets.resolve("digits", ada))
    assert (path / "train.bin").read_bytes() == content
    assert (path / "more" / "empty.txt").read_bytes() == b""
    page.get_by_text("Remove", exact=False).and_(page.locator("summary")).click()
    page.get_by_role("button", name="Delete its files").click()
    expect(page.get_by_text("Removed ada/digits@1.")).to_be_visible()
    assert not Dataset.objects.exists()
