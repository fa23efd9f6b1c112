"""Logs, metrics, checkpoints and files of a job."""

import csv
import io
import os
import tarfile
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient

from orchestrator.agent.follow import Follower
from orchestrator.models import Checkpoint, JobState
from orchestrator.people import tokens
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.checkpoints.outside import OutsideCheckpoint, write_unkept
from orchestrator.store.metrics.writer import MetricWriter, points_of

NAN = float("nan")


@pytest.fixture
def ran(make_attempt):
    """A job with one attempt that runs."""
    return make_attempt(state=JobState.RUNNING).job


@pytest.fixture
def log(ran, home):
    path = home.job(ran.pk).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_bytes("step 1 loss 0.5\nü\x00\x1b[31m<b>\n".encode() + b"\xff\n")
    return path


@pytest.fixture
def output(ran, home):
    folder = home.job(ran.pk).output
    (folder / "plots").mkdir(parents=True)
    (folder / "result.json").write_text('{"loss": 0.5}')
    (folder / "plots" / "page.html").write_text("<script>alert(1)</script>")
    return folder


# --- logs -----------------------------------------------------------------------------------------------


def test_a_log_is_read_in_pieces_without_gap(log, ran, client_of, ada):
    client = client_of(ada)
    whole, offset = b"", 0
    while True:
        answer = client.send("GET", f"/jobs/{ran.pk}/logs?offset={offset}&limit=5")
        if int(answer["X-Next-Offset"]) == offset:
            break
        offset = int(answer["X-Next-Offset"])
        whole += answer.content

    assert whole == log.read_bytes()
    assert (answer["X-Log-Size"], answer["X-Attempt"]) == (str(log.stat().st_size), "1")


def test_b54_a_log_is_never_a_page(log, ran, client_of, ada):
    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/logs")

    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer["Content-Security-Policy"]


def test_a_log_is_read_from_its_end(log, ran, client_of, ada):
    assert client_of(ada).send("GET", f"/jobs/{ran.pk}/logs?offset=-2").content == b"\xff\n"


def test_a_log_that_is_not_there_yet_is_empty_and_an_unknown_attempt_404(ran, client_of, ada, make_job):
    client = client_of(ada)

    assert client.send("GET", f"/jobs/{ran.pk}/logs?rank=0").content == b""
    assert client.send("GET", f"/jobs/{make_job().pk}/logs").content == b""
    assert client.send("GET", f"/jobs/{ran.pk}/logs?attempt=2").status_code == 404


def test_the_log_of_a_rank_that_the_job_does_not_have_is_404(ran, client_of, ada):
    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/logs?rank=1")

    assert answer.status_code == 404
    assert answer.json()["detail"] == "The job has no rank 1; give 0."


def test_a_job_has_reported_once_a_step_or_value_came(ran, client_of, ada):
    def last_report_at():
        return client_of(ada).send("GET", f"/jobs/{ran.pk}").json()["last_report_at"]

    type(ran).objects.update(last_report_at=ran.submitted_at)  # it printed a line
    assert last_report_at() is None
    type(ran).objects.update(step=3)
    assert last_report_at() is not None


@pytest.mark.parametrize(
    "query", ["rank=-1", "rank=../../x", "attempt=0", "limit=0", "limit=1e9", "offset=x", "path=x"]
)
def test_windows_of_a_log_that_are_none_are_400(query, ran, client_of, ada):
    assert client_of(ada).send("GET", f"/jobs/{ran.pk}/logs?{query}").status_code == 400


# --- metrics --------------------------------------------------------------------------------------------


@pytest.fixture
def metrics(ran, home):
    with MetricWriter(home.job(ran.pk).metrics, 1, 1000.0, None) as writer:
        for step in range(1000):
            loss = NAN if step == 7 else 99.0 if step == 500 else 1.0
            writer.append(points_of(step, 1000.0 + step, {"loss": loss, "lr": 0.1}))
        type(ran).objects.filter(pk=ran.pk).update(metric_seq=writer.flush()["seq"])


def test_metrics_keep_every_spike_and_stay_json(metrics, ran, client_of, ada):
    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/metrics?max_points=20")

    assert b"NaN" not in answer.content
    loss = answer.json()["series"]["loss"]
    assert (max(loss["y_max"]), loss["total"], len(loss["x"])) == (99.0, 1000, len(loss["y"]))
    assert len(loss["x"]) <= 20
    assert loss["nonfinite"] == [[7, "nan"]]


def test_metrics_by_name_window_and_time(metrics, ran, client_of, ada):
    client = client_of(ada)

    few = client.send("GET", f"/jobs/{ran.pk}/metrics?names=lr,none&from=10&to=12").json()["series"]
    assert (list(few), few["lr"]["x"]) == (["lr"], [10, 11, 12])
    timed = client.send("GET", f"/jobs/{ran.pk}/metrics?names=lr&x=time&to=1001").json()["series"]
    assert timed["lr"]["x"] == [1000.0, 1001.0]
    written = client.send(
        "GET",
        f"/jobs/{ran.pk}/metrics?names=lr&x=time&from=1970-01-01T00:16:41Z&to=1970-01-01T01:16:42%2B01:00",
    )
    assert written.json()["series"]["lr"]["x"] == [1001.0, 1002.0]


@pytest.mark.parametrize(
    "query",
    [
        "x=wall",
        "max_points=0",
        "max_points=1000000",
        "from=nan",
        "to=inf",
        "start=1",
        "from=2026-11-21T07:00:00Z",
        "x=time&from=soon",
    ],
)
def test_windows_of_metrics_that_are_none_are_400(query, ran, client_of, ada):
    assert client_of(ada).send("GET", f"/jobs/{ran.pk}/metrics?{query}").status_code == 400


def test_a_job_without_metrics_has_no_series(ran, client_of, ada):
    found = client_of(ada).send("GET", f"/jobs/{ran.pk}/metrics").json()

    assert found == {"series": {}, "charts": [], "seq": 0}


def test_all_points_leave_as_csv_that_a_spreadsheet_takes_for_no_formula(ran, home, client_of, ada, bob):
    folder = home.job(ran.pk).metrics
    for attempt, steps in ((1, range(600)), (2, range(500, 510))):
        with MetricWriter(folder, attempt, 1000.0, None) as writer:
            for step in steps:
                writer.append(
                    points_of(step, 1000.0 + step, {"=cmd()": NAN if step == 7 else 1.5, "lr": 0.1})
                )
            seq = writer.flush()["seq"]
    type(ran).objects.filter(pk=ran.pk).update(metric_seq=seq)
    address = f"/jobs/{ran.pk}/metrics.csv?names=%3Dcmd()"

    answer = client_of(ada).send("GET", address)

    assert "attachment" in answer["Content-Disposition"]
    rows = list(csv.reader(io.StringIO(content(answer).decode())))
    assert rows[0] == ["series", "attempt", "step", "time", "value"]
    assert len(rows) == 1 + 600 + 10
    assert rows[1] == ["'=cmd()", "1", "0", "1970-01-01T00:16:40.000+00:00", "1.5"]
    assert (rows[8][4], rows[-1][1:3]) == ("nan", ["2", "509"])
    assert client_of(bob).send("GET", address).status_code == 404


def test_what_the_newest_attempt_has_not_reached_again_is_marked(ran, home, client_of, ada):
    for attempt, steps in ((1, range(100)), (2, range(50, 60))):
        with MetricWriter(home.job(ran.pk).metrics, attempt, 1000.0, None) as writer:
            for step in steps:
                writer.append(points_of(step, 1000.0 + step, {"loss": float(attempt)}))
            type(ran).objects.filter(pk=ran.pk).update(metric_seq=writer.flush()["seq"])
    client = client_of(ada)

    loss = client.send("GET", f"/jobs/{ran.pk}/metrics").json()["series"]["loss"]

    assert (loss["tail"], loss["y"][49:51], loss["y"][59:61]) == (60, [1.0, 2.0], [2.0, 1.0])
    timed = client.send("GET", f"/jobs/{ran.pk}/metrics?x=time").json()["series"]["loss"]
    assert timed["tail"] is None


# --- files ----------------------------------------------------------------------------------------------


def content(answer) -> bytes:
    return b"".join(answer.streaming_content)


def test_files_are_listed_and_downloaded(output, ran, client_of, ada):
    client = client_of(ada)

    listed = client.send("GET", f"/jobs/{ran.pk}/files").json()
    assert [file["path"] for file in listed["results"]] == ["plots/page.html", "result.json"]
    answer = client.get(listed["results"][1]["download"])
    assert content(answer) == b'{"loss": 0.5}'
    assert answer["Content-Length"] == "13"


def test_what_a_job_wrote_beside_its_script_is_listed_and_downloaded(output, ran, home, client_of, ada):
    work = home.job(ran.pk).work
    (work / "outputs").mkdir(parents=True)
    (work / "outputs" / "scores.csv").write_text("epoch,loss\n")
    (work / "result.json").write_text("beside")
    client = client_of(ada)

    listed = client.send("GET", f"/jobs/{ran.pk}/files").json()["results"]

    assert [(file["folder"], file["path"]) for file in listed] == [
        ("output", "plots/page.html"),
        ("output", "result.json"),
        ("work", "outputs/scores.csv"),
        ("work", "result.json"),
    ]
    assert [content(client.get(file["download"])) for file in listed[1:]] == [
        b'{"loss": 0.5}',
        b"epoch,loss\n",
        b"beside",
    ]
    # Clients that know one folder only ask without naming it.
    assert content(client.send("GET", f"/jobs/{ran.pk}/files/outputs/scores.csv")) == b"epoch,loss\n"


def test_a_picture_is_sent_as_one_and_still_as_an_attachment(output, ran, client_of, ada):
    (output / "plot.png").write_text("<script>alert(1)</script>")

    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/files/plot.png")

    assert answer["Content-Type"] == "image/png"
    assert answer["Content-Disposition"].startswith("attachment;")
    assert answer["X-Content-Type-Options"] == "nosniff"
    answer.close()


def test_t29_a_page_that_a_job_wrote_is_an_attachment(output, ran, client_of, ada):
    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/files/plots/page.html")

    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"].startswith("attachment;")
    assert answer["Content-Security-Policy"].startswith("sandbox")
    assert answer["X-Content-Type-Options"] == "nosniff"
    answer.close()


@pytest.mark.parametrize(
    "path",
    [
        "../work/train.py",
        "plots/../../work/train.py",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "..%2F..%2Fx",
        "plots",
        "plots/",
        "nope",
        "train.py",
        ".",
    ],
)
def test_t09_paths_that_leave_the_folder_or_name_no_file_are_404(path, output, ran, home, client_of, ada):
    home.job(ran.pk).work.mkdir()
    (home.job(ran.pk).work / "train.py").write_text("secret")
    code = home.bundles / ran.bundle
    code.mkdir(parents=True)
    (code / "train.py").write_text("secret")

    assert client_of(ada).send("GET", f"/jobs/{ran.pk}/files/{path}").status_code == 404


def test_b58_links_pipes_and_sockets_are_neither_listed_nor_sent(output, ran, client_of, ada):
    (output / "passwd").symlink_to("/etc/passwd")
    (output / "etc").symlink_to("/etc")
    os.mkfifo(output / "pipe")
    client = client_of(ada)

    paths = [file["path"] for file in client.send("GET", f"/jobs/{ran.pk}/files").json()["results"]]
    assert paths == ["plots/page.html", "result.json"]
    for path in ("passwd", "etc/passwd", "pipe"):
        assert client.send("GET", f"/jobs/{ran.pk}/files/{path}").status_code == 404, path


def test_a_file_name_that_is_no_text_does_not_break_the_list(output, ran, client_of, ada):
    (output / os.fsdecode(b"caf\xe9")).write_text("x")
    (output / 'a"b;.txt').write_text("x")
    client = client_of(ada)

    paths = [file["path"] for file in client.send("GET", f"/jobs/{ran.pk}/files").json()["results"]]
    assert "caf\ufffd" in paths
    answer = client.send("GET", f"/jobs/{ran.pk}/files/a%22b;.txt")
    assert answer["Content-Disposition"] == "attachment; filename*=UTF-8''a%22b%3B.txt"
    answer.close()


def test_the_link_of_a_file_leads_to_it_whatever_its_name_has(output, ran, client_of, ada):
    names = ["a#b?c%20d.txt", "sub dir/é+&;.txt", "two\nlines"]
    (output / "sub dir").mkdir()
    for name in names:
        (output / name).write_text(name)
    client = client_of(ada)

    listed = client.send("GET", f"/jobs/{ran.pk}/files").json()["results"]

    links = {file["path"]: file["download"] for file in listed}
    assert links[names[0]].endswith("/files/a%23b%3Fc%2520d.txt")
    for name in names:
        assert content(client.get(links[name])).decode() == name


def test_a_large_file_is_streamed_under_asgi(output, ran, ada):
    with (output / "model.pt").open("wb") as file:
        file.truncate(3 * 1024**2)
    headers = {"Authorization": f"Token {tokens.issue(ada, name='x')[1]}"}

    async def fetch() -> list[int]:
        answer: Any = await AsyncClient().get(f"/api/v1/jobs/{ran.pk}/files/model.pt", headers=headers)
        assert answer.status_code == 200, answer.content
        return [len(chunk) async for chunk in answer.streaming_content]

    sizes = async_to_sync(fetch)()

    assert (sum(sizes), max(sizes)) == (3 * 1024**2, 256 * 1024)


# --- checkpoints ----------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(ran, home) -> Checkpoint:
    folder = home.job(ran.pk)
    folder.checkpoints.mkdir(parents=True)
    (folder.checkpoints / "ckpt.bin").write_bytes(b"weights")
    generation = GenerationStore(folder).capture(
        [folder.checkpoints / "ckpt.bin"], 1, 200, lambda: True, settle_s=0
    )
    assert generation is not None
    return Checkpoint.objects.create(
        job=ran,
        attempt_number=1,
        step=200,
        name=generation.name,
        source="script",
        size_bytes=generation.size_bytes,
        created_at=ran.submitted_at,
    )


def test_a_checkpoint_is_downloaded_with_its_manifest(checkpoint, ran, client_of, ada):
    client = client_of(ada)
    [listed] = client.send("GET", f"/jobs/{ran.pk}/checkpoints").json()["results"]
    assert (listed["step"], listed["size_bytes"]) == (200, 7)

    answer = client.get(listed["download"])

    assert answer["Content-Type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(content(answer))) as archive:
        contents = {member.name: (archive.extractfile(member) or io.BytesIO()).read() for member in archive}
    assert sorted(contents) == ["checkpoints/ckpt.bin", "manifest.json"]
    assert contents["checkpoints/ckpt.bin"] == b"weights"


def test_a_checkpoints_files_are_listed_by_name_and_downloaded_one_by_one(
    checkpoint, ran, client_of, ada, bob
):
    [listed] = client_of(ada).send("GET", f"/jobs/{ran.pk}/checkpoints").json()["results"]

    assert (listed["path"], listed["file_count"]) == ("ckpt.bin", 1)
    [file] = listed["files"]
    assert (file["path"], file["size_bytes"]) == ("checkpoints/ckpt.bin", 7)
    answer = client_of(ada).get(file["download"])
    assert content(answer) == b"weights"
    assert "''ckpt.bin" in answer["Content-Disposition"]
    assert client_of(bob).get(file["download"]).status_code == 404


@pytest.mark.parametrize("path", ["manifest.json", "0000", "checkpoints/other.bin", "../1/manifest.json"])
def test_nothing_but_a_checkpoints_own_files_is_sent(path, checkpoint, ran, client_of, ada):
    address = f"/jobs/{ran.pk}/checkpoints/200/files/{path}"

    assert client_of(ada).send("GET", address).status_code == 404


def test_what_is_not_kept_is_listed_until_a_pattern_names_it(ran, home, client_of, ada, bob):
    home.job(ran.pk).root.mkdir(parents=True, exist_ok=True)
    write_unkept(home.job(ran.pk), [OutsideCheckpoint("out/*.pt", "out/ckpt.pt", 15)])
    client = client_of(ada)

    assert client.send("GET", f"/jobs/{ran.pk}/checkpoints").json()["unkept"] == [
        {"path": "out/ckpt.pt", "times": 15, "glob": "out/*.pt"}
    ]
    assert client_of(bob).send("PATCH", f"/jobs/{ran.pk}", {"checkpoint_glob": "x"}).status_code == 404
    changed = client.send("PATCH", f"/jobs/{ran.pk}", {"checkpoint_glob": "out/*.pt"}).json()
    assert changed["checkpoint_glob"] == "out/*.pt"
    assert client.send("GET", f"/jobs/{ran.pk}/checkpoints").json()["unkept"] == []
    assert client.send("PATCH", f"/jobs/{ran.pk}", {"checkpoint_glob": "../x"}).status_code == 400


def test_a_checkpoint_is_deleted_for_good(checkpoint, ran, home, client_of, ada):
    client = client_of(ada)

    assert client.send("DELETE", f"/jobs/{ran.pk}/checkpoints/200").status_code == 204
    assert client.send("GET", f"/jobs/{ran.pk}/checkpoints").json()["results"] == []
    assert GenerationStore(home.job(ran.pk)).list() == []
    assert client.send("DELETE", f"/jobs/{ran.pk}/checkpoints/200").status_code == 404


def test_a_checkpoint_stays_while_an_attempt_starts(checkpoint, ran, client_of, ada):
    type(ran).objects.update(state=JobState.STARTING)

    assert client_of(ada).send("DELETE", f"/jobs/{ran.pk}/checkpoints/200").status_code == 409


def test_b58_a_link_among_the_kept_files_is_not_followed(checkpoint, ran, home, client_of, ada):
    [generation] = GenerationStore(home.job(ran.pk)).list()
    (generation.folder / "extra").symlink_to("/etc/passwd")

    answer = client_of(ada).send("GET", f"/jobs/{ran.pk}/checkpoints/200")

    with tarfile.open(fileobj=io.BytesIO(content(answer))) as archive:
        assert "extra" not in archive.getnames()


@pytest.mark.parametrize("step", ["201", "-1", "..", "9" * 30, "generation%209", "²"])
def test_unknown_checkpoints_are_404(step, checkpoint, ran, client_of, ada):
    assert client_of(ada).send("GET", f"/jobs/{ran.pk}/checkpoints/{step}").status_code == 404


def test_lines_of_a_log_come_by_number_and_from_the_end(client_of, ada, make_attempt, home):
    attempt = make_attempt()
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.logs.mkdir(parents=True, exist_ok=True)
    folder.log(0).write_bytes(b"one\n\x1b[31mtwo\x1b[0m \x1b]0;title\x07\nthree")
    client = client_of(ada)

    first = client.send("GET", f"/jobs/{attempt.job_id}/logs/lines?from=1&count=1").json()
    last = client.send("GET", f"/jobs/{attempt.job_id}/logs/lines?from=-1").json()

    assert first["total"] == 3
    assert first["lines"] == [{"number": 1, "offset": 4, "text": "\x1b[31mtwo\x1b[0m "}]
    assert [line["text"] for line in last["lines"]] == ["three"]


def test_f90_a_log_without_a_newline_is_read_in_lines_of_16_kib(client_of, ada, make_attempt, home):
    attempt = make_attempt(state=JobState.RUNNING)
    path = home.job(attempt.job_id).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * (3 << 20))
    client = client_of(ada)

    first = client.send("GET", f"/jobs/{attempt.job_id}/logs/lines?from=0&count=5").json()
    last = client.send("GET", f"/jobs/{attempt.job_id}/logs/lines?from=-1").json()
    found = client.send("GET", f"/jobs/{attempt.job_id}/logs/search?q=x&limit=2").json()

    assert [len(line["text"]) for line in first["lines"]] == [16 << 10] * 5
    assert (first["total"], first["open"], first["end"]) == (192, False, 5 * (16 << 10))
    assert (last["lines"][0]["number"], last["open"]) == (191, True)
    assert (found["total"], [hit["number"] for hit in found["hits"]]) == (192, [0, 1])


def test_a_search_of_a_log_pages_through_its_hits(client_of, ada, make_attempt, home):
    attempt = make_attempt()
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.logs.mkdir(parents=True, exist_ok=True)
    folder.log(0).write_text("".join(f"line {n}\n" for n in range(50)))
    client = client_of(ada)

    found = client.send("GET", f"/jobs/{attempt.job_id}/logs/search?q=LINE&from=10&limit=2").json()
    refused = client.send("GET", f"/jobs/{attempt.job_id}/logs/search?q=(&regex=true")

    assert found["total"] == 50
    assert [hit["text"] for hit in found["hits"]] == ["line 10", "line 11"]
    assert refused.status_code == 400
    assert "q" in refused.json()["errors"]


def test_the_lines_of_all_ranks_come_as_one_log(client_of, ada, bob, make_attempt, make_device, home):
    attempt = make_attempt(state=JobState.RUNNING, gpus=2, devices=[make_device(0), make_device(1)])
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.logs.mkdir(parents=True, exist_ok=True)
    folder.log(1).write_text("one\n")
    follower = Follower(attempt)
    follower.poll()
    folder.log(0).write_text("<b>zero</b>\n")
    follower.poll(at_end=True)
    follower.close()
    client, address = client_of(ada), f"/jobs/{attempt.job_id}/logs/merged"

    lines = client.send("GET", address).json()
    found = client.send("GET", f"{address}/search?q=ZERO").json()

    assert lines["total"] == 2
    assert [(line["number"], line["rank"], line["text"]) for line in lines["lines"]] == [
        (0, 1, "one"),
        (1, 0, "<b>zero</b>"),
    ]
    assert [hit["number"] for hit in found["hits"]] == [1]
    assert client.send("GET", f"{address}?attempt=7").status_code == 404
    assert client.send("GET", f"{address}/search?q=(&regex=true").status_code == 400
    assert client_of(bob).send("GET", address).status_code == 404


def test_a_job_on_one_device_has_nothing_to_merge(client_of, ada, make_attempt):
    attempt = make_attempt()
    answer = client_of(ada).send("GET", f"/jobs/{attempt.job_id}/logs/merged").json()
    assert (answer["total"], answer["lines"]) == (0, [])
