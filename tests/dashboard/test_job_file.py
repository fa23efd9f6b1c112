"""The files of a job on its page, and the page that shows one."""

import io
import json

import pytest
from django.urls import reverse

from dashboard.parts.previews import LONGEST_CELL, MOST_COLUMNS, MOST_ROWS, READ_BYTES, Preview, read_preview
from tests.dashboard.markup import html_of

PNG_START = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def job(make_job, home):
    """A job that wrote into its output folder and beside its script."""
    made = make_job()
    folder = home.job(made.pk)
    folder.output.mkdir(parents=True)
    (folder.work / "outputs").mkdir(parents=True)
    (folder.output / "result.json").write_text('{"loss":0.5}')
    (folder.work / "outputs" / "model.bin").write_bytes(b"\0\1")
    (folder.work / "scores.csv").write_text("epoch;loss\n1;<b>0,5</b>\n")
    (folder.work / "page.html").write_text("<script>alert(1)</script>")
    return made


def address(job, path: str, folder: str = "work") -> str:
    return f"{reverse('job-file', args=[job.pk])}?folder={folder}&path={path}"


def preview(path: str, data: bytes) -> Preview:
    return read_preview(path, io.BytesIO(data), len(data))


def test_a_job_page_lists_both_folders_and_leads_to_previews(reader, ada, job):
    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    assert html.index("Output folder") < html.index("result.json") < html.index("Beside the script")
    assert f"{reverse('job-file', args=[job.pk])}?folder=work&amp;path=scores.csv" in html
    assert f"/api/v1/jobs/{job.pk}/files/outputs/model.bin?folder=work" in html
    assert "path=outputs%2Fmodel.bin" not in html  # a page cannot show it


def test_a_csv_file_is_shown_as_a_table_of_text(reader, ada, job):
    html = html_of(reader(ada).get(address(job, "scores.csv")))

    assert '<th scope="col">epoch</th>' in html
    assert "<td>&lt;b&gt;0,5&lt;/b&gt;</td>" in html
    assert f"/api/v1/jobs/{job.pk}/files/scores.csv?folder=work" in html


def test_a_page_that_a_job_wrote_is_shown_as_its_source(reader, ada, job):
    answer = reader(ada).get(address(job, "page.html"))

    assert b"&lt;script&gt;alert(1)" in answer.content
    assert b"<script>alert" not in answer.content


@pytest.mark.parametrize("path", ["", "nothing.txt", "../output/result.json", "outputs"])
def test_a_path_that_names_no_result_is_not_found(reader, ada, job, path):
    assert reader(ada).get(address(job, path)).status_code == 404


def test_a_file_of_another_persons_private_job_is_not_found(reader, bob, job):
    assert reader(bob).get(address(job, "scores.csv")).status_code == 404


def test_json_is_indented_and_what_only_looks_like_it_is_text():
    assert preview("a.json", b'{"a":[1,NaN]}').text == json.dumps({"a": [1, float("nan")]}, indent=2)
    assert preview("a.json", b'{"a":').text == '{"a":'
    assert preview("a.json", b"[" * 10_000).text == "[" * 10_000  # deeper than Python reads


def test_deep_json_is_not_indented_without_end():
    deep = b"[" * 900 + b",".join([b"0"] * 100_000) + b"]" * 900

    assert len(preview("a.json", deep).text) < 2 * READ_BYTES


def test_a_preview_is_bounded_and_says_what_is_missing():
    rows = preview("a.csv", b"a,b\n" + b"1,2\n" * (MOST_ROWS + 5))
    wide = preview("a.csv", b",".join([b"x" * 1000] * 100))
    long = preview("a.txt", b"line\n" * READ_BYTES)

    assert (len(rows.rows), rows.is_cut) == (MOST_ROWS, True)
    assert (len(wide.header), len(wide.header[0]), wide.is_cut) == (MOST_COLUMNS, LONGEST_CELL + 1, True)
    assert (len(long.text) <= READ_BYTES, long.text[-5:], long.is_cut) == (True, "line\n", True)
    assert not preview("a.csv", b"a,b\n1,2\n").is_cut


@pytest.mark.parametrize(
    ("path", "data", "kind"),
    [
        ("a.png", PNG_START, "image"),
        ("a.PNG", b"", "none"),
        ("notes.md", b"# Title\n", "text"),
        ("a.csv", b"\0\1\2", "none"),
        ("a.csv", b'"' + b"x" * 200_000, "text"),  # longer than a field of the csv module may be
        ("model.pt", b"text", "none"),
        ("a.svg", b"<svg/>", "none"),
        ("tab.tsv", b"a\tb,c\n", "table"),
    ],
)
def test_a_file_is_previewed_by_its_name_and_content(path, data, kind):
    assert preview(path, data).kind == kind


def test_a_preview_shows_no_control_characters():
    assert preview("a.txt", b"\x1b[2Jred \x1b[31mtext\x07\n").text == "red text\n"
