"""Images, histograms, tables and texts of a job by REST: what a run wrote is read as a stranger's."""

import json

import pytest

from orchestrator.models import JobState
from training.media import INDEX, Media

PICTURE = [[0, 255], [255, 0]]


@pytest.fixture
def ran(make_attempt):
    return make_attempt(state=JobState.RUNNING).job


@pytest.fixture
def folder(ran, home):
    made = home.job(ran.pk).attempt(1).media
    made.mkdir(parents=True)
    return made


@pytest.fixture
def reported(folder):
    media = Media(folder)
    for step in (1, 2):
        media.take("image", {"val/samples": PICTURE}, step, 1000.0 + step)
    media.take("histogram", [1.0, 2.0, float("nan")], 2, 1002.0)
    media.take("table", [{"word": "a", "score": 1.5}], 2, 1002.0)
    media.take("text", {"answer": "yes <b>"}, 2, 1002.0)
    media.write()
    assert media.problems() == []
    return folder


def results(client, job, query=""):
    return client.send("GET", f"/jobs/{job.pk}/media{query}").json()["results"]


def test_what_a_run_reported_is_listed_and_read(reported, ran, client_of, ada):
    client = client_of(ada)
    listed = results(client, ran)
    values = [client.send("GET", each["content"].removeprefix("/api/v1")) for each in listed]

    assert [(each["kind"], each["name"], each["step"]) for each in listed] == [
        ("image", "val/samples", 1),
        ("image", "val/samples", 2),
        ("histogram", "histogram", 2),
        ("table", "table", 2),
        ("text", "answer", 2),
    ]
    assert values[0]["Content-Type"] == "image/png"
    assert values[0]["X-Content-Type-Options"] == "nosniff"
    assert values[0].content == (reported / "000000.png").read_bytes()
    assert (sum(values[2].json()["counts"]), values[2].json()["not_finite"]) == (2, 1)
    assert (values[3].json()["columns"], values[3].json()["rows"]) == (["word", "score"], [["a", 1.5]])
    assert values[4].json()["text"] == "yes <b>"


def test_a_list_can_be_of_one_kind_or_name(reported, ran, client_of, ada):
    client = client_of(ada)

    assert [each["step"] for each in results(client, ran, "?kind=image&name=val/samples")] == [1, 2]
    assert results(client, ran, "?name=nothing") == []
    assert client.send("GET", f"/jobs/{ran.pk}/media?kind=film").status_code == 400


def test_a_job_without_media_has_an_empty_list(ran, client_of, ada):
    assert results(client_of(ada), ran) == []


def test_anothers_media_are_as_if_they_were_not_there(reported, ran, client_of, bob):
    client = client_of(bob)

    for below in ("", "/1/0/image", "/1/4/value"):
        assert client.send("GET", f"/jobs/{ran.pk}/media{below}").status_code == 404


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b'{"step": 1}',
        json.dumps({"step": -1, "time": 1.0, "kind": "text", "name": "a", "file": "000000.json"}).encode(),
        json.dumps({"step": 1, "time": 1.0, "kind": "film", "name": "a", "file": "000000.json"}).encode(),
        json.dumps({"step": 1, "time": 1.0, "kind": "text", "name": "a", "file": "../exit.json"}).encode(),
        json.dumps({"step": 1, "time": 1.0, "kind": "image", "name": "a", "file": "000000.json"}).encode(),
        b'{"step": 1, "time": NaN, "kind": "text", "name": "a", "file": "000000.json"}',
        b"[" * 100_000,
    ],
)
def test_a_line_of_an_index_that_says_nothing_is_left_out(line, folder, ran, client_of, ada):
    good = {"step": 1, "time": 1.0, "kind": "text", "name": "half \ud800", "file": "000001.json"}
    (folder / INDEX).write_bytes(line + b"\n" + json.dumps(good).encode() + b"\n")

    assert [each["name"] for each in results(client_of(ada), ran)] == ["half ?"]


def entry(folder, kind: str, content: bytes) -> None:
    ending = "png" if kind == "image" else "json"
    line = {"step": 1, "time": 1.0, "kind": kind, "name": kind, "file": f"000000.{ending}"}
    (folder / INDEX).write_text(json.dumps(line) + "\n")
    (folder / f"000000.{ending}").write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("image", b"<html><script>alert(1)</script>"),
        ("image", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\xff" * 8 + b"\x08\x02\0\0\0"),
        ("image", b""),
        ("image", b"\x89PNG\r\n\x1a\n" + bytes(9 << 20)),
        ("histogram", b'{"counts": [1], "edges": [0], "not_finite": 0}'),
        ("histogram", b'{"counts": [1], "edges": [0, NaN], "not_finite": 0}'),
        ("histogram", b'{"counts": [1e400], "edges": [0, 1], "not_finite": 0}'),
        ("table", b'{"columns": 3, "rows": [], "rows_total": 0}'),
        ("table", b"[]"),
        ("text", b"{}"),
        ("text", b"\x80\x04."),  # a pickle
    ],
)
def test_a_file_that_is_not_what_its_kind_says_is_404(kind, content, folder, ran, client_of, ada):
    entry(folder, kind, content)
    end = "image" if kind == "image" else "value"

    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/media/1/0/{end}")

    assert answer.status_code == 404
    assert "file" in answer.json()["detail"].lower() or "image" in answer.json()["detail"]


def test_cells_that_json_cannot_hold_are_texts(folder, ran, client_of, ada):
    entry(
        folder,
        "table",
        b'{"columns": ["a", "b", "c"], "rows": [[NaN, 1e400, 123456789012345678901]], "rows_total": 1}',
    )

    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/media/1/0/value")

    assert answer.json()["rows"] == [["nan", "inf", "123456789012345678901"]]


def test_links_out_of_the_folder_are_not_followed(folder, ran, client_of, ada, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"text": "secret", "characters": 6}')
    entry(folder, "text", b"{}")
    (folder / "000000.json").unlink()
    (folder / "000000.json").symlink_to(secret)

    assert client_of(ada).send("GET", f"/jobs/{ran.pk}/media/1/0/value").status_code == 404

    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")

    assert results(client_of(ada), ran) == []
