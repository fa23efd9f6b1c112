"""What ``berth run`` starts, before it asks any server."""

import json
import shlex
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from berth.cli.job_options import read_options
from berth.cli.submitting import choose_code, from_git, submit
from berth.client import Berth, BerthError, Spec
from berth.client.code import read_code
from berth.shared.arguments import WrongUse
from berth.shared.command_lines import started_words
from tests.berth.conftest import BERTH, environment_for
from tests.jobs.repositories import make_repository

NOBODY = cast(Berth, None)


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("fit", "Was fit.py meant?"),
        ("python fit.py", "To run a program: berth run -- python fit.py"),
        (
            "torchrun fit.py",
            "To run a program: berth run -- torchrun fit.py",
        ),  # of the server, if not of this machine
        ("fits", ""),
        ("sort", "Was sort.py meant?"),
        ("split", "To run a program: berth run -- split"),
    ],
)
def test_a_name_without_a_file_is_answered_with_what_was_meant(code, hint, tmp_path):
    (tmp_path / "fit.py").touch()
    (tmp_path / "sort.py").touch()

    with pytest.raises(BerthError) as refused:
        submit(NOBODY, code, {})

    assert (
        str(refused.value)
        == f"There is no file {code!r} here; name a script, an archive or a folder. {hint}".strip()
    )


def test_a_device_is_refused_before_it_is_read():
    with pytest.raises(BerthError, match="/dev/zero is a device, not a script"):
        read_code(Path("/dev/zero"), {})


@pytest.mark.parametrize(
    ("code", "given", "words", "chosen"),
    [
        ("train.py", {}, ["--lr", "1"], ("train.py", {"args": ["--lr", "1"]})),
        (None, {"module": "pkg.train"}, ["--lr", "1"], (".", {"module": "pkg.train", "args": ["--lr", "1"]})),
        ("src", {"module": "fit"}, [], ("src", {"module": "fit"})),
        (None, {}, ["accelerate", "launch"], (".", {"command": ["accelerate", "launch"]})),
        (None, {"command": ["make"]}, ["all"], (".", {"command": ["make"], "args": ["all"]})),
        (".", {}, ["--lr", "1"], (".", {"args": ["--lr", "1"]})),
        (".", {}, ["fit", "--lr", "1"], (".", {"args": ["fit", "--lr", "1"]})),
        (
            ".",
            {"entrypoint": "cli.py"},
            ["make", "1"],
            (".", {"entrypoint": "cli.py", "args": ["make", "1"]}),
        ),
        ("cli.py", {}, ["make", "1"], ("cli.py", {"args": ["make", "1"]})),
    ],
)
def test_words_after_the_dashes_are_arguments_or_else_the_command(code, given, words, chosen):
    assert choose_code(code, cast(Spec, given), words) == chosen


@pytest.mark.parametrize(
    ("line", "is_command"),
    [
        ("bash run.sh", True),
        ("/bin/bash -ex run.sh 3", True),
        ("bash -euo pipefail run.sh", True),
        ("bash -lc 'python train.py'", True),
        ("bash none.sh", False),
        ("python3.11 -u train.py", True),
        ("python -W ignore train.py", True),
        ("python -m pkg.train", True),
        ("python -m", False),
        ("python --epochs 3", False),
        ("python", False),
        ("env A=1 bash run.sh", True),
        ("env", False),
        ("make", False),
        ("julia --threads 4 train.py", True),
        ("julia -e println(1)", True),
        ("python -um pkg.train", True),
        ("bash --rcfile x train.py", True),
        ("jupyter lab", True),
        ("jupyter", False),
        ("uv", False),
        ("uv run train.py", True),
        ("uv pip", False),
        ("torchrun --nproc-per-node 2 train.py --lr 1", True),
        ("torchrun 3", False),
        ("accelerate launch -m pkg.train", True),
        ("mpirun -np 2 python train.py", True),
        ("./run.sh --now", True),
        ("./tool", True),
        ("./data --lr 1", False),
        ("./configs/a.yaml", False),
        ("./none", False),
        ("/bin/ls train.py", False),
    ],
)
def test_words_behind_a_folder_are_a_command_only_where_it_can_start(line, is_command, tmp_path):
    for name in ("train.py", "run.sh", "configs/a.yaml", "data/a.csv", "tool"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n" if name == "run.sh" else "1\n")
    (tmp_path / "tool").chmod(0o755)
    words = shlex.split(line)

    assert choose_code(".", {}, words) == (".", {"command" if is_command else "args": words})
    assert choose_code(".", {"entrypoint": "train.py"}, words)[1].get("args") == words


def test_a_folder_with_a_makefile_takes_make_as_a_command(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/Makefile").touch()

    assert choose_code("code", {}, ["make", "all"])[1] == {"command": ["make", "all"]}
    assert choose_code(".", {"workdir": "code"}, ["make"])[1] == {"workdir": "code", "command": ["make"]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bash run.sh", "bash run.sh is read as the command; to give it as arguments of a script: -e train.py -- bash run.sh"),
        ("bash 3", "bash 3 is read as arguments of the script; to give it as a command: --command 'bash 3'"),
        ("./notes.txt", "./notes.txt is read as arguments of the script; to give it as a command: --command ./notes.txt"),
        ("--lr 1", ""),
        ("fit --lr 1", ""),
        ("./data --lr 1", ""),
    ],
)  # fmt: skip
def test_words_that_may_be_either_are_said_as_they_are_read(line, said, tmp_path, capsys):
    (tmp_path / "run.sh").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "data").mkdir()

    choose_code(".", {}, shlex.split(line))

    assert capsys.readouterr().err == (f"berth: {said}\n" if said else "")


class _Accepting:
    """A server that takes every job, after which the folder's rules cannot be read."""

    def __init__(self, rules: Path) -> None:
        self.rules = rules

    def run(self, *_: Any, **__: Any) -> str:
        self.rules.write_bytes(b"\xff\xfe")
        return "the job"


def test_links_of_a_folder_are_looked_for_before_its_upload(tmp_path, capsys):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "code/data").symlink_to(tmp_path / "data")
    berth = cast(Berth, _Accepting(tmp_path / "code/.gitignore"))

    assert cast(Any, submit(berth, "code", {})) == "the job"
    assert "Links are not uploaded: data." in capsys.readouterr().err


def test_nothing_to_run_is_answered_with_the_three_ways():
    with pytest.raises(
        WrongUse, match=r"berth run train\.py, berth run -m pkg\.train, or berth run -- accel"
    ):
        choose_code(None, {}, [])


def test_home_folder_is_not_uploaded_unless_it_is_named(monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))

    with pytest.raises(WrongUse, match=r"The whole of .* would be uploaded"):
        choose_code(None, {}, ["python", "train.py"])
    assert choose_code(".", {}, [])[0] == "."


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({"module": ["pkg.train"]}, {"module": "pkg.train"}),
        ({"module": ["40"]}, {"gpu_memory_gib": 40.0}),
        ({"module": ["40", "pkg.train"]}, {"module": "pkg.train", "gpu_memory_gib": 40.0}),
        ({"module": ["40G"]}, {"gpu_memory_gib": 40.0}),
        ({"module": ["fit"], "gpu_memory_gib": "512M"}, {"module": "fit", "gpu_memory_gib": 0.5}),
        (
            {"command": "accelerate launch 'my train.py'"},
            {"command": ["accelerate", "launch", "my train.py"]},
        ),
    ],
)
def test_m_names_a_module_and_with_a_number_memory(given: dict[str, Any], spec):
    assert read_options(NOBODY, given) == spec


@pytest.mark.parametrize("given", [{"module": ["a", "b"]}, {"module": ["4"], "gpu_memory_gib": "2"}])
def test_two_modules_or_amounts_are_refused(given):
    with pytest.raises(WrongUse, match="-m was given more than once"):
        read_options(NOBODY, given)


def test_started_words_are_those_of_a_command_line():
    assert started_words({"entrypoint": "a.py", "args": ["-v"]}) == ["a.py", "-v"]
    assert started_words({"entrypoint": None, "module": "p.a", "args": []}) == ["-m", "p.a"]
    assert started_words({"command": ["make", "all"], "args": ["x"]}) == ["make", "all", "x"]


@pytest.mark.parametrize(
    ("script", "given", "words", "spec"),
    [
        ("train.py", {}, ["--lr", "1"], {"entrypoint": "train.py", "args": ["--lr", "1"]}),
        (None, {"module": "pkg.fit"}, ["x"], {"module": "pkg.fit", "args": ["x"]}),
        (None, {}, ["accelerate", "launch", "train.py"], {"command": ["accelerate", "launch", "train.py"]}),
        (None, {}, ["--lr", "1"], {"args": ["--lr", "1"]}),
        (None, {}, [], {}),
    ],
)
def test_code_from_git_starts_what_is_named_else_what_the_repository_says(script, given, words, spec):
    named = from_git("git@host:lab/code.git", "main", "KEY", script, cast(Spec, given), words)

    assert named == {**spec, "source": {"git": "git@host:lab/code.git", "ref": "main", "key": "KEY"}}


def test_script_beside_a_module_of_a_repository_is_refused():
    with pytest.raises(WrongUse, match=r"train\.py and --module both say what to run"):
        from_git("https://host/x", None, None, "train.py", {"module": "fit"}, [])


class _OlderServer(BaseHTTPRequestHandler):
    """Refuses the fields that it does not know, as a server from before them."""

    asked: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(body)
        is_known = b'"git"' not in body
        problem = {"detail": "unknown field", "errors": {"git": ["unknown field; known are name"]}}
        answer = json.dumps({"id": "1", "warnings": []} if is_known else problem).encode()
        self.send_response(201 if is_known else 400)
        self.send_header("Content-Type", "application/json" if is_known else "application/problem+json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_server_that_keeps_no_commits_gets_the_job_without_one(tmp_path):
    make_repository(tmp_path / "code", {"train.py": "print(1)\n"})
    server = HTTPServer(("127.0.0.1", 0), _OlderServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Berth(f"http://127.0.0.1:{server.server_port}", "t") as berth:
            assert berth.run(tmp_path / "code", entrypoint="train.py").json["id"] == "1"
            with pytest.raises(BerthError, match="unknown field"):
                berth.run(tmp_path / "code", git={"commit": "0" * 40})
    finally:
        server.shutdown()
        server.server_close()

    assert [b'"git"' in body for body in _OlderServer.asked] == [True, False, True]


class _OtherVersion(BaseHTTPRequestHandler):
    """Lists sweeps without the fields that this version has."""

    def do_GET(self) -> None:
        answer = json.dumps({"results": [{"id": "1", "short_id": "1"}], "next": None}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("words", [("sweeps",), ("best",)])
def test_server_of_another_version_is_said_as_a_sentence(tmp_path, words):
    server = HTTPServer(("127.0.0.1", 0), _OtherVersion)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        answer = subprocess.run(
            [*BERTH, *words],
            env=environment_for(url, "t") | {"XDG_CONFIG_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.shutdown()
        server.server_close()

    assert answer.returncode == 2, answer.stderr
    assert "It is of another version than this command" in answer.stderr
    assert "Traceback" not in answer.stderr
