"""The second wall around a run: what it may write to, and whom it may reach."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.sandbox import bwrap, landlock
from tests.conftest import lacking
from tests.supervisor.conftest import Attempt

MakeAttempt = Callable[..., Attempt]
TRIES = """
import os, sys
def attempt(act):
    try:
        act()
        return "done"
    except OSError as error:
        return type(error).__name__
inside, outside = sys.argv[1:]
print(attempt(lambda: open(inside + "/new", "w").write("x")))
print(attempt(lambda: (os.mkdir(inside + "/folder"), os.rename(inside + "/new", inside + "/folder/new"))))
print(attempt(lambda: open(outside + "/old", "w")))
print(attempt(lambda: open(outside + "/old", "r+").truncate(0)))
print(attempt(lambda: os.unlink(outside + "/old")))
print(attempt(lambda: os.symlink("/etc", outside + "/link")))
print(attempt(lambda: os.rename(inside + "/folder/new", outside + "/stolen")))
print(attempt(lambda: os.kill(os.getppid(), 0)))
print(attempt(lambda: open(outside + "/old").read()))
"""
CALLS_OUT = """
import socket, sys
def attempt(name):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(name)
            return "reached"
        except OSError as error:
            return type(error).__name__
with socket.socket(socket.AF_UNIX) as own:
    own.bind(chr(0) + "own-of-the-job")
    own.listen()
    print(attempt(chr(0) + "own-of-the-job"))
print(attempt(chr(0) + sys.argv[1]))
"""


@pytest.fixture(scope="module")
def needs_landlock() -> int:
    known = landlock.version()
    if not known:
        lacking("this kernel has no Landlock")
    return known


@pytest.fixture(scope="module")
def needs_scopes(needs_landlock: int) -> None:
    if needs_landlock < 6:
        pytest.skip("the Landlock of this kernel knows no scopes, which are in Linux since 6.12")


def test_a_confined_command_writes_where_it_was_told_and_nowhere_else(
    needs_landlock: int, tmp_path: Path
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "old").write_text("kept")
    confine = [sys.executable, "-I", "-S", landlock.__file__, "2", str(inside), str(tmp_path / "not there")]

    done = subprocess.run(
        [*confine, sys.executable, "-c", TRIES, str(inside), str(outside)],
        capture_output=True,
        text=True,
        check=True,
    )

    refused = "PermissionError"
    outside_it = [refused] * 5  # opened to write, truncated, removed, a link made, moved there
    signal = refused if needs_landlock >= 6 else "done"
    assert done.stdout.split() == ["done", "done", *outside_it, signal, "done"], done.stderr
    assert (outside / "old").read_text() == "kept"


def test_a_file_alone_may_be_written_to(needs_landlock: int, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("")
    write = "import sys; open(sys.argv[1], 'a').write('x'); open(sys.argv[1] + '.part', 'w')"

    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            landlock.__file__,
            "1",
            str(metrics),
            sys.executable,
            "-c",
            write,
            str(metrics),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "PermissionError" in done.stderr
    assert metrics.read_text() == "x"


def test_a_run_does_not_reach_an_abstract_socket_of_somebody_else(
    make_attempt: MakeAttempt, needs_groups: None, needs_scopes: None
) -> None:
    """No mount hides these, and the job shares the network."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("\0")  # the kernel chooses a name
        other.listen()
        name = other.getsockname()[1:].decode()
        confined = make_attempt(CALLS_OUT, level=2, args=[name])
        open_one = make_attempt(CALLS_OUT, level=1, args=[name])

        assert confined.run()["kind"] == "ok", confined.everything()
        assert open_one.run()["kind"] == "ok", open_one.everything()

    assert confined.log().split() == ["reached", "PermissionError"]
    assert open_one.log().split() == ["reached", "reached"]


def test_the_record_of_the_sandbox_says_whether_the_second_wall_stands(
    make_attempt: MakeAttempt, needs_groups: None, needs_landlock: int
) -> None:
    attempt = make_attempt("open('kept', 'w').write('x')", level=2)

    assert attempt.run()["kind"] == "ok", attempt.everything()

    record = read_record(attempt.folder.sandbox)
    assert record is not None
    assert record["landlock"] is True
    assert bwrap.detect() == 2
