"""Pictures, histograms, tables and texts on a job's page."""

import re

import pytest
from django.urls import reverse

from orchestrator.models import JobState
from tests.dashboard.markup import html_of
from training.media import INDEX, Media


@pytest.fixture
def job(make_attempt, home):
    made = make_attempt(state=JobState.RUNNING).job
    media = Media(home.job(made.pk).attempt(1).media)
    for step in (10, 20):
        media.take("image", {"val/<b>": [[0, step], [step, 0]]}, step, 1000.0)
    media.take("histogram", {"grad": [1.0, 2.0, 2.0, float("nan")]}, 20, 1000.0)
    media.take("table", [{"word": "<i>a", "score": None}] * 150, 20, 1000.0)
    media.take("text", "<script>alert(1)</script>", 20, 1000.0)
    media.write()
    return made


def inside(client, job, **query):
    return client.get(reverse("job-media", args=[job.pk]), query)


def test_job_page_has_the_panel_hidden_until_something_was_reported(reader, ada, job):
    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    assert re.search(rf'id="media"[^>]*data-media="/jobs/{job.pk}/media"[^>]*hidden', html, re.DOTALL)


def test_each_name_shows_its_newest_value_and_a_slider_if_there_are_more(reader, ada, job):
    html = html_of(inside(reader(ada), job))

    assert [*re.findall(r'data-kind="(\w+)"', html)] == ["histogram", "image", "table", "text"]
    assert f'src="/api/v1/jobs/{job.pk}/media/1/1/image"' in html
    assert html.count('type="range"') == 1
    assert 'max="1" value="1"' in html
    assert html.count("<rect ") == 64
    assert "1 value NaN or infinite" in html
    assert "The first 100 of 150 rows" in html


def test_what_a_script_wrote_is_text_on_the_page(reader, ada, job):
    html = html_of(inside(reader(ada), job))

    assert "&lt;script&gt;alert(1)" in html
    assert "val/&lt;b&gt;" in html
    assert "<td>&lt;i&gt;a</td><td></td>" in html
    assert "<script" not in html


def test_a_slider_asks_for_one_earlier_value(reader, ada, job):
    html = html_of(inside(reader(ada), job, kind="image", name="val/<b>", at=0))

    assert "step 10" in html
    assert "/media/1/0/image" in html


@pytest.mark.parametrize(
    "query",
    [
        {"kind": "image", "name": "val/<b>", "at": "9"},
        {"kind": "image", "name": "val/<b>", "at": "first"},
        {"kind": "image", "name": "nothing", "at": "0"},
    ],
)
def test_values_that_are_not_there_are_404(query, reader, ada, job):
    assert inside(reader(ada), job, **query).status_code == 404


def test_another_persons_media_are_404(reader, bob, job):
    assert inside(reader(bob), job).status_code == 404


def test_a_file_that_was_damaged_says_so_in_its_place(reader, ada, job, home):
    (home.job(job.pk).attempt(1).media / "000002.json").write_bytes(b"\x80\x04.")

    assert "The file is not a histogram." in html_of(inside(reader(ada), job))


def test_a_job_that_reported_nothing_fills_nothing(reader, ada, make_job, home):
    assert html_of(inside(reader(ada), make_job())).strip() == ""


def test_only_the_first_names_are_shown_and_the_rest_is_counted(reader, ada, job, home):
    media = Media(home.job(job.pk).attempt(1).media)
    (home.job(job.pk).attempt(1).media / INDEX).unlink()
    for number in range(4):
        media.take("text", {f"{number:02}/{each:02}": "a" for each in range(16)}, 1, 1.0)
        media.write()

    assert "4 more names" in html_of(inside(reader(ada), job))
