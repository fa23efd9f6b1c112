"""The Python client against a real server."""

import socket
import stat
import threading
import zipfile
from io import BytesIO

import httpx
import pytest

from berth.client import (
    Berth,
    BerthError,
    Conflict,
    Forbidden,
    NotFound,
    NotSignedIn,
    Refused,
    Unreachable,
    login_path,
    pack_folder,
    raise_for_status,
    read_login,
    save_login,
    tidy_url,
)
from tests.berth.seed import MANY
from tests.system.server import free_port

pytestmark = pytest.mark.slow  # the server's start

SCRIPT = "print('step 1 loss 0.5')\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_submitted_and_read_back(berth, script):
    job = berth.run(script, gpus=2, args=["--lr", "3e-4"], tags=["t"])

    again = berth.job(job.short_id)

    assert (again.id, again.name, again.state, again.gpus) == (job.id, "train", "queued", 2)
    assert (again.args, again.tags, again.owner) == (["--lr", "3e-4"], ["t"], "ada")
    assert again.submitted_at.tzinfo is not None
    job.cancel()


def test_folder_is_packed_without_caches_and_hidden_files(tmp_path):
    for name in (
        "src/train.py",
        ".git/config",
        "__pycache__/a.pyc",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        ".hidden",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SCRIPT)
    (tmp_path / "link.py").symlink_to("/etc/hostname")

    with zipfile.ZipFile(BytesIO(pack_folder(tmp_path))) as archive:
        assert archive.namelist() == ["src/train.py"]


def test_too_large_folder_is_refused_before_it_is_packed(tmp_path):
    with (tmp_path / "images.bin").open("wb") as file:
        file.truncate(2**30 + 1)  # a hole: reading it would take seconds

    with pytest.raises(BerthError, match=r"more than 1 GiB, too much for code.*berth data add"):
        pack_folder(tmp_path)


def test_a_folder_is_submitted_with_its_entrypoint(berth, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)

    job = berth.run(tmp_path, entrypoint="src/train.py")

    assert job.entrypoint == "src/train.py"
    job.cancel()


def test_a_list_is_read_over_all_its_pages(client_of):
    jobs = list(client_of("bob").jobs(tag="many"))

    assert len({job.id for job in jobs}) == MANY > 50
    assert [job.name for job in client_of("bob").jobs(tag="many", limit=2)] == ["many-56", "many-55"]


def test_a_log_comes_whole_and_from_the_end(berth, web):
    job = berth.job(web.jobs["running"])

    parts = list(job.log())
    tail = list(job.log(offset=-12))

    assert len(parts) > 1
    assert "".join(part.text for part in parts).endswith("line 39999\nline 40000\n")
    assert [part.offset for part in parts[1:]] == [part.next_offset for part in parts[:-1]]
    assert "".join(part.text for part in tail) == "\nline 40000\n"


def test_fields_say_what_was_wrong(berth, script):
    with pytest.raises(Refused, match="4 devices; 9 were asked for") as refused:
        berth.run(script, gpus=9)

    assert (refused.value.status, refused.value.code) == (422, "impossible")
    assert list(refused.value.fields) == ["gpus"]


def test_each_refusal_has_its_class(berth, client_of, web):
    with pytest.raises(NotFound, match="you may not see it"):
        client_of("bob").job(web.jobs["running"])
    with pytest.raises(Conflict):
        berth.job(web.jobs["ended"]).hold()
    with pytest.raises(Forbidden, match="scope read"):
        client_of("reader").job(web.jobs["waiting"]).hold()
    with pytest.raises(Forbidden, match="Only operators"):
        berth.set_device("sim-0", "draining")
    wrong, none = Berth(web.url, "berth_0000000000_" + 43 * "x"), Berth(web.url)
    with wrong, pytest.raises(NotSignedIn, match="unknown, expired or revoked"):
        wrong.me()
    with none, pytest.raises(NotSignedIn, match="not logged in"):
        none.me()


def test_a_job_is_held_released_changed_and_cancelled(berth, script):
    job = berth.run(script)

    assert job.hold().state == "held"
    assert job.release().state == "queued"
    assert job.change(priority=7, time_limit_s=60).json["time_limit_s"] == 60
    assert job.change(time_limit_s=None).time_limit_s is None
    assert job.cancel().state == "cancelled"
    assert [event.to for event in job.events()][-1] == "cancelled"


def test_the_same_code_runs_again_with_changes(berth, web):
    parent = berth.job(web.jobs["failed"])

    job = parent.again(args=["--lr", "1e-4"])

    assert (job.parent, job.args, job.name) == (parent.id, ["--lr", "1e-4"], "ner")
    job.cancel()


def test_a_file_is_fetched_whole_with_any_name(berth, web, tmp_path):
    job = berth.job(web.jobs["ended"])

    for each in job.files():
        job.fetch_file(each.path, tmp_path / each.folder / each.path, folder=each.folder)

    assert {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.*")} == {
        "output/plots/a b.txt": "a plot\n",
        "output/result.json": '{"accuracy": 0.97}\n',
        "work/result.json": "beside\n",
        "work/scores.csv": "epoch,loss\n",
    }


def test_a_file_that_is_not_there_leaves_nothing_behind(berth, web, tmp_path):
    with pytest.raises(NotFound):
        berth.job(web.jobs["ended"]).fetch_file("nothing", tmp_path / "nothing")

    assert list(tmp_path.iterdir()) == []


def test_waiting_ends_at_its_limit_and_at_once_for_an_ended_job(berth, web):
    assert not berth.job(web.jobs["waiting"]).wait(0.2).ended
    assert berth.job(web.jobs["ended"]).wait().state == "succeeded"


def test_an_operators_client_knows_who_it_is(client_of):
    person = client_of("root").me()

    assert (person.username, person.is_operator, person.scope) == ("root", True, "admin")


def test_a_login_is_kept_for_its_server_only_and_read_by_its_owner_only(plain, monkeypatch):
    path = save_login("gpu-box:8265/", "berth_secret")

    assert path == login_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_login() == {"url": "http://gpu-box:8265", "token": "berth_secret"}
    assert Berth().token == read_login()["token"]
    monkeypatch.setenv("BERTH_URL", "http://elsewhere")
    assert Berth().token == ""


def test_a_token_is_not_sent_where_an_answer_points(plain):
    """A list's ``next`` may name another host; only its query is used."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        page = '{"next": "http://evil.invalid/api/v1/jobs?cursor=abc", "previous": null, "results": []}'
        last = '{"next": null, "previous": null, "results": []}'
        answering = threading.Thread(target=_answer, args=(listener, [page, last], asked))
        answering.start()
        with Berth(f"http://127.0.0.1:{port}", "t") as berth:
            assert list(berth.jobs()) == []
        answering.join()

    assert asked[1].startswith("GET /api/v1/jobs?cursor=abc ")


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://x:port", "http://a b", "http://u:p@x", "http://x?a=b"]
)
def test_b43_text_that_is_no_address_is_refused(url):
    with pytest.raises(BerthError, match="such as http://gpu-box:8265"):
        tidy_url(url)


def test_a_text_that_is_no_utf_8_is_refused_in_words(berth, script):
    with pytest.raises(BerthError, match=r"not UTF-8 .*dcff"):
        berth.plan(args=["\udcff"])
    with pytest.raises(Refused) as refused:
        berth.run(script, args=["\udcff"])

    assert "args" in refused.value.fields


def test_nothing_at_the_address_is_said_with_what_to_do(plain):
    with pytest.raises(Unreachable, match=r"Nothing answers at http://127.0.0.1:\d+ .* `make up`"):
        Berth(f"http://127.0.0.1:{free_port()}", "t").me()


def test_another_program_at_the_address_is_not_taken_for_berth(plain):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        answering = threading.Thread(target=_answer, args=(listener, ["<html>"], [], "text/html"))
        answering.start()
        with (
            Berth(f"http://127.0.0.1:{port}") as berth,
            pytest.raises(Unreachable, match="not a Berth server"),
        ):
            berth.me()
        answering.join()


@pytest.mark.parametrize(
    ("status", "headers", "body", "sentence"),
    [
        (413, {"Content-Type": "text/html"}, b"<h1>", "A proxy before http://gpu-box takes no request of this size"),
        (301, {"Location": "https://gpu-box/api/v1/jobs"}, b"", "http://gpu-box sends to https://gpu-box"),
        (301, {"Location": "/jobs"}, b"", "is not a Berth server .HTTP 301."),
        (400, {"Content-Type": "application/problem+json"}, b"[1]", "is not a Berth server .HTTP 400."),
        (400, {"Content-Type": "application/problem+json"}, b'{"detail": "No.", "errors": [1]}', "No."),
        (502, {"Content-Type": "text/html"}, b"<h1>", "is overloaded .HTTP 502."),
    ],
)  # fmt: skip
def test_what_a_proxy_answers_is_said_as_a_sentence(status, headers, body, sentence):
    answer = httpx.Response(status, headers=headers, content=body)

    with pytest.raises(BerthError, match=sentence):
        raise_for_status(answer, "http://gpu-box")


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/plain", "OK"), ("application/json", '{"a":'), ("application/json", ""), ("application/json", "[]"), ("application/json", '{"a": 1}')],
)  # fmt: skip
def test_an_answer_that_is_no_list_is_not_taken_for_berths(plain, kind, body):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=_answer, args=(listener, [body], [], kind))
        answering.start()
        with (
            Berth(f"http://127.0.0.1:{listener.getsockname()[1]}") as berth,
            pytest.raises(Unreachable, match="not a Berth server"),
        ):
            berth.sweeps()
        answering.join()


def test_a_submit_whose_answer_was_lost_makes_one_job(berth, web, script):
    """The first answer is cut off after the server has the job; the client asks again with the same key."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cutting = threading.Thread(target=_cut_first_answer, args=(listener, web.url))
        cutting.start()
        with Berth(f"http://127.0.0.1:{listener.getsockname()[1]}", berth.token) as far:
            job = far.run(script, name="once")
        cutting.join()

    assert [each.id for each in berth.jobs(q="once")] == [job.id]
    berth.job(job.id).cancel()


def _answer(listener, bodies, asked, kind="application/json"):
    """Answer one request a connection."""
    for body in bodies:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536).decode())
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall((head + body).encode())


def _cut_first_answer(listener, url):
    """Pass two requests on to the server; the answer to the first one is dropped."""
    host, port = url.removeprefix("http://").split(":")
    for number in range(2):
        connection, _ = listener.accept()
        with connection, socket.create_connection((host, int(port))) as server:
            server.sendall(
                _request(connection).replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n", 1)
            )
            with server.makefile("rb") as stream:
                answer = stream.read()
            if number:
                connection.sendall(answer)


def _request(connection):
    """One whole request with its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_a_name_of_dots_leads_to_nothing_else(berth, name):
    berth.make_project("dots")

    with pytest.raises(NotFound, match="Nothing has the name"):
        berth.drop_member("dots", name)
    with pytest.raises(NotFound, match="Nothing has the name"):
        berth.find_sweep(name)

    assert berth.project("dots").name == "dots"
    berth.remove_project("dots")


def test_log_that_grows_while_it_is_pushed_is_pushed_as_it_was(berth, tmp_path):
    log = tmp_path / "train.log"
    log.write_bytes(b"x" * (9 << 20))

    def append(*_: int) -> None:
        with log.open("ab") as file:
            file.write(b"y" * 1000)

    dataset = berth.push("growing", log, tell=append)

    assert dataset.size_bytes == 9 << 20


def test_file_that_is_removed_while_its_folder_is_pushed_is_named(berth, tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{number}")

    def remove(*_: int) -> None:
        for path in tmp_path.iterdir():
            path.unlink(missing_ok=True)

    with pytest.raises(BerthError, match=r"\d+\.txt cannot be read: No such file or directory\."):
        berth.push("vanishing", tmp_path, tell=remove)
