"""The documentation under /docs/: only files of the site, and only the scripts that it was built with."""

import base64
import hashlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.django_db

PAGE = b"<html><script>start()</script><script>start()</script><script src='a.js'></script><p>Tutorial</p></html>"


@pytest.fixture
def site(settings, tmp_path: Path, home) -> Path:
    """A site of two pages, as `make docs` leaves it, beside a file that does not belong to it."""
    site = settings.DOCUMENTATION_SITE = tmp_path / "docs" / "site"
    (site / "tutorial").mkdir(parents=True)
    (site / "assets").mkdir()
    (site / "index.html").write_bytes(b"<html><p>Welcome</p></html>")
    (site / "tutorial" / "index.html").write_bytes(PAGE)
    (site / "assets" / "bundle.0123.min.js").write_text("start = () => 1")
    (site.parent / "mkdocs.yml").write_text("not a page")
    return site


def test_pages_are_served_by_folder(site: Path, reader, ada):
    client = reader(ada)

    assert b"Welcome" in client.get("/docs/").content
    assert client.get("/docs/tutorial").headers["Location"] == "/docs/tutorial/"
    assert b"Tutorial" in client.get("/docs/tutorial/").content


def test_a_page_is_in_english_whoever_reads_it(site: Path, reader, ada):
    client = reader(ada)
    client.cookies["berth_language"] = "de"

    assert client.get("/docs/").headers["Content-Language"] == "en"


def test_a_page_runs_the_scripts_it_was_built_with_and_no_others(site: Path, reader, ada):
    policy = reader(ada).get("/docs/tutorial/").headers["Content-Security-Policy"]

    allowed = base64.b64encode(hashlib.sha256(b"start()").digest()).decode()
    assert f"script-src 'self' 'sha256-{allowed}';" in policy


def test_a_page_that_was_built_again_gets_a_new_policy(site: Path, reader, ada):
    before = reader(ada).get("/docs/tutorial/").headers["Content-Security-Policy"]
    (site / "tutorial" / "index.html").write_bytes(PAGE.replace(b"start()", b"begin()"))

    assert reader(ada).get("/docs/tutorial/").headers["Content-Security-Policy"] != before


def test_assets_whose_names_are_hashes_are_kept_by_browsers(site: Path, reader, ada):
    answer = reader(ada).get("/docs/assets/bundle.0123.min.js")

    assert "immutable" in answer.headers["Cache-Control"]
    assert "javascript" in answer.headers["Content-Type"]


@pytest.mark.parametrize(
    "path", ["../mkdocs.yml", "%2e%2e/mkdocs.yml", "tutorial/../../mkdocs.yml", "nothing", "a%00b"]
)
def test_nothing_outside_of_the_site_is_served(site: Path, reader, ada, path: str):
    answer = reader(ada).get(f"/docs/{path}")

    assert answer.status_code in {400, 404}
    assert b"not a page" not in answer.content


def test_a_link_that_leads_out_of_the_site_is_not_followed(site: Path, reader, ada, tmp_path: Path):
    (tmp_path / "secret.txt").write_text("not a page")
    (site / "assets" / "out.txt").symlink_to(tmp_path / "secret.txt")

    assert reader(ada).get("/docs/assets/out.txt").status_code == 404


def test_a_server_whose_site_was_not_built_says_how_to_build_it(settings, tmp_path: Path, reader, ada):
    settings.DOCUMENTATION_SITE = tmp_path / "nothing"
    answer = reader(ada).get("/docs/tutorial/")

    assert answer.status_code == 404
    assert b"make docs" in answer.content
