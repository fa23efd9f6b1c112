"""The documentation site is built from docs/ without a broken link, and asks no other host."""

import re
from pathlib import Path

import pytest

from berth import __version__
from deploy.docs import build

ROOT = Path(__file__).resolve().parents[2]


def test_links_lead_to_the_same_pages_in_the_site():
    page = ROOT / "docs" / "how-to" / "test.md"
    text = (
        "[start](../tutorial.md#run) [figures](../../benchmarks/README.md) [code](../../berth/client/server.py) "
        "[web](https://example.org) [here](#marks) ![wall](../pictures/job.png)"
    )

    moved = build.move_links(text, page, build.PAGES / "how-to" / "test.md")

    assert moved == (
        "[start](../tutorial.md#run) [figures](../figures.md) code "
        "[web](https://example.org) [here](#marks) ![wall](../pictures/job.png)"
    )


def test_links_of_pages_outside_of_docs_are_moved_with_them():
    moved = build.move_links("[all](docs/README.md)", ROOT / "CHANGELOG.md", build.PAGES / "changes.md")

    assert moved == "[all](README.md)"


def test_every_page_but_the_decisions_has_its_place_in_the_navigation():
    tabs = str(build.navigation((ROOT / "docs" / "README.md").read_text()))
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]

    missing = [page for page in pages if page.parts[0] != "decisions" and f"'{page}'" not in tabs]
    assert missing == []


def test_an_index_that_names_a_file_which_is_no_page_is_refused():
    with pytest.raises(build.NotBuilt, match=r"LICENSE\.md, which is not a page"):
        build.navigation("## Reference\n\n[licence](../LICENSE.md)\n")


def test_the_first_page_names_its_version_and_where_others_are():
    line = build.version_line("1.2.0", "abc1234")

    assert "describe Berth 1.2.0 (commit `abc1234`)" in line
    assert "`make docs`" in line
    assert "commit `" not in build.version_line("1.2.0", "")


def test_routes_are_listed_with_what_they_take():
    parameter = {"name": "state", "in": "query", "description": "states,\nby commas"}
    route = {"tags": ["jobs"], "summary": "List jobs.", "parameters": [parameter]}

    lines = "\n".join(build.routes({"paths": {"/api/v1/jobs": {"get": route}}}))

    assert "## Jobs\n" in lines
    assert "### `GET /api/v1/jobs`\n\nList jobs.\n" in lines
    assert "| `state` | query | states, by commas |" in lines


@pytest.fixture(scope="module")
def site() -> Path:
    return build.build()


@pytest.mark.slow
def test_the_site_has_every_page_and_every_reference(site: Path):
    for page in build.REFERENCE:
        assert (site / page.removesuffix(".md") / "index.html").is_file()
    assert "berth run" in (site / "reference/commands/index.html").read_text()
    assert "find_unused_parameters" in (site / "how-to/choose-a-strategy/index.html").read_text()
    assert "/api/v1/jobs/{job_id}" in (site / "reference/rest/index.html").read_text()
    assert "BerthError" in (site / "reference/client/index.html").read_text()
    assert "TrainConfig" in (site / "reference/library/index.html").read_text()
    assert f"Berth {__version__}" in (site / "how-to/sweep/index.html").read_text()
    assert f"These pages describe Berth {__version__}" in (site / "index.html").read_text()


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site: Path):
    loads = re.compile(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^\"' >]+")

    foreign = {found for page in site.rglob("*.html") for found in loads.findall(page.read_text())}
    assert {link for link in foreign if "canonical" not in link} == set()


def test_the_film_stands_on_the_first_page_above_its_tables_where_there_is_one(tmp_path, monkeypatch):
    index = "# Berth's pages\n\nNew? Begin here.\n\n## How to ...\n"
    monkeypatch.setattr(build, "FILM", tmp_path / "berth.webm")
    without = build.with_film(index)
    build.FILM.write_bytes(b"film")

    shown = build.with_film(index)

    assert without == index
    assert shown.index("Begin here") < shown.index('<video src="pictures/berth.webm"') < shown.index("## How")
