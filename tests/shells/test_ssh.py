"""A real SSH client in the sandbox of a real run, at each level that this machine has."""

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.ranks import shell
from orchestrator.supervisor.sandbox import landlock
from tests.shells.conftest import Refused, Ssh, client, open_way
from tests.supervisor.conftest import Attempt
from tests.waiting import PATIENCE_S, wait_until

MakeAttempt = Callable[..., Attempt]
WAITS = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
open("pid", "w").write(str(os.getpid()))
print("ready", flush=True)
while True:
    time.sleep(3600)
"""
ANSWERS = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", 6006), http.server.SimpleHTTPRequestHandler)
print("ready", flush=True)
server.serve_forever()
"""
# What the process that serves the connection is, seen from the shell that it started.
LOOK_AT_PARENT = """
import json, os
parent, found = os.getppid(), {}
for name in ("fd/0", "fd/2", "exe", "mem", "root", "cwd", "environ"):
    try:
        os.open(f"/proc/{parent}/{name}", os.O_RDONLY)
        found[name] = "reached"
    except OSError as error:
        found[name] = error.strerror
print(json.dumps(found))
"""


def started(attempt: Attempt) -> Attempt:
    attempt.start()
    attempt.wait_for_line("ready")
    return attempt


def test_command_runs_in_the_folder_and_with_the_environment_of_the_run(
    make_attempt: MakeAttempt, ssh: Ssh, level: int
) -> None:
    attempt = started(make_attempt(WAITS, level=level, env={"OWN": "yes"}))

    answer = ssh(
        attempt, "pwd; echo $OWN $RANK $BERTH_METRICS_FILE; echo bad >&2; cat; exit 7", given="given"
    )

    assert answer.stdout.splitlines() == [str(attempt.work), "yes", "given"], answer.stderr
    assert answer.stderr == "bad\n"
    assert answer.returncode == 7


def test_shell_has_the_walls_of_the_run(make_attempt: MakeAttempt, ssh: Ssh, level: int) -> None:
    if not level:
        pytest.skip("level 0 has no walls")
    attempt = started(make_attempt(WAITS, level=level))
    secret = attempt.folder.root.parents[2] / "secret"
    secret.write_text("key")
    look = f"cat {secret}; touch /usr/mine; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; ls /proc"

    answer = ssh(attempt, look)

    lines = answer.stdout.splitlines()
    status = dict(line.split(":\t") for line in lines if "\t" in line)
    assert "key" not in lines
    assert "Read-only file system" in answer.stderr or "Permission denied" in answer.stderr
    assert int(status["CapEff"], 16) == 0
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert str(os.getpid()) not in lines  # processes of the host


def test_nobody_in_the_sandbox_reaches_what_serves_the_connection(
    make_attempt: MakeAttempt, ssh: Ssh, level: int
) -> None:
    if not level:
        pytest.skip("level 0 has no walls")
    attempt = started(make_attempt(WAITS, level=level))
    (attempt.work / "look.py").write_text(LOOK_AT_PARENT)

    # A shell that has more to do stays between; exec makes Python the child of the connection itself.
    answer = ssh(attempt, "exec python look.py")

    assert "reached" not in json.loads(answer.stdout).values(), answer.stdout


def test_shell_can_signal_the_run(make_attempt: MakeAttempt, ssh: Ssh, level: int) -> None:
    attempt = started(make_attempt(WAITS, level=level))

    # By its pid: at level 0 a name would also reach the runs of other tests.
    answer = ssh(attempt, "kill -USR1 $(cat pid) || echo not allowed")

    assert answer.stdout == "", answer.stderr
    attempt.wait_for_line("heard")


def test_landlock_holds_in_the_shell(make_attempt: MakeAttempt, ssh: Ssh, needs_groups: None) -> None:
    if not landlock.version():
        pytest.skip("this kernel has no Landlock")
    attempt = started(make_attempt(WAITS, level=2))
    listener = socket.socket(socket.AF_UNIX)
    name = f"berth-test-{os.getpid()}"
    listener.bind(f"\0{name}")
    listener.listen()
    (attempt.work / "call.py").write_text(
        f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
    )

    answer = ssh(attempt, "python call.py")

    listener.close()
    assert "PermissionError" in answer.stderr


def test_terminal_has_the_size_of_the_client(make_attempt: MakeAttempt, level: int) -> None:
    attempt = started(make_attempt(WAITS, level=level))
    words = [*client(attempt, "ssh", "-tt"), "run", "tty; stty size; echo $TERM; read line; echo said $line"]
    own, other = pty.openpty()
    ended = subprocess.Popen(
        ["sh", "-c", 'stty rows 33 cols 77; exec "$@"', "sh", *words],
        stdin=other,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.write(own, b"hello\n")
    said, wrong = ended.communicate(timeout=PATIENCE_S)

    # The terminal may echo the line before the program reads it.
    lines = [line for line in said.decode().replace("\r", "").splitlines() if line != "hello"]
    assert lines[0].startswith("/dev/pts/"), wrong
    assert lines[1:3] == ["33 77", "xterm-256color"]
    assert lines[-1] == "said hello"
    os.close(own)
    os.close(other)


def test_files_come_and_go(make_attempt: MakeAttempt, level: int, tmp_path: Path) -> None:
    attempt = started(make_attempt(WAITS, level=level))
    big = os.urandom(3_000_000)
    (tmp_path / "mine").write_bytes(big)

    for words in (
        [*client(attempt, "scp", "-q"), str(tmp_path / "mine"), "run:theirs"],
        [*client(attempt, "scp", "-q"), "run:theirs", str(tmp_path / "back")],
    ):
        subprocess.run(words, check=True, timeout=PATIENCE_S)

    assert (attempt.work / "theirs").read_bytes() == big
    assert (tmp_path / "back").read_bytes() == big


@pytest.mark.parametrize("network", ["host", "none"])
def test_port_of_the_run_is_forwarded(
    make_attempt: MakeAttempt, level: int, network: str, tmp_path: Path
) -> None:
    if network == "none" and not level:
        pytest.skip("level 0 has no network of its own")
    script = (
        ANSWERS
        if network == "none"
        else ANSWERS.replace("6006", "0").replace('print("ready"', 'print("ready", server.server_port')
    )
    attempt = started(make_attempt(script, level=level, network=network))
    port = 6006 if network == "none" else int(attempt.log().split("ready")[1].split()[0])
    near = tmp_path / "near"
    words = [*client(attempt, "ssh", "-N", "-L", f"{near}:127.0.0.1:{port}"), "run"]
    forwarding = subprocess.Popen(words)

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        # The file is there a moment before ssh listens.
        wait_until(lambda: connection.connect_ex(str(near)) == 0, PATIENCE_S, attempt.everything)
        connection.sendall(b"GET /train.py HTTP/1.0\r\n\r\n")

        assert b"200 OK" in connection.recv(100)
    forwarding.terminate()
    forwarding.wait()


def test_run_ends_though_a_shell_is_open(make_attempt: MakeAttempt, level: int) -> None:
    attempt = started(make_attempt(WAITS, level=level))
    words = [*client(attempt), "run", "echo in; sleep 3600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == b"in\n"

        order_stop(attempt.folder, "cancel", 0.0)

        assert attempt.finish()["kind"] == "cancelled"
        assert inside.wait(PATIENCE_S) == 255  # ssh's own: the connection ended


def test_program_left_in_the_background_outlives_its_connection(
    make_attempt: MakeAttempt, ssh: Ssh, level: int
) -> None:
    attempt = started(make_attempt(WAITS, level=level))

    ssh(attempt, "nohup sh -c 'sleep 2; echo done > later' >/dev/null 2>&1 </dev/null &")

    wait_until((attempt.work / "later").exists, PATIENCE_S, attempt.everything)


def test_terminal_that_is_closed_hangs_up_its_program(make_attempt: MakeAttempt, level: int) -> None:
    attempt = started(make_attempt(WAITS, level=level))
    words = [
        *client(attempt, "ssh", "-tt"),
        "run",
        "trap 'echo hung up > told; exit' HUP; echo in; while :; do sleep 0.1; done",
    ]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline().strip() == b"in"

        inside.send_signal(signal.SIGKILL)

    wait_until((attempt.work / "told").exists, PATIENCE_S, attempt.everything)


def test_way_in_is_refused_once_too_many_are_open(make_attempt: MakeAttempt) -> None:
    attempt = started(make_attempt(WAITS))
    ways = [open_way(attempt) for _ in range(shell.MOST)]

    with pytest.raises(Refused, match=f"{shell.MOST} connections"):
        open_way(attempt)
    assert len({way.name for way in ways}) == shell.MOST


def test_way_in_that_nobody_takes_is_given_up(make_attempt: MakeAttempt, ssh: Ssh) -> None:
    attempt = started(make_attempt(WAITS))
    way = open_way(attempt)
    way.unlink()  # nobody can connect any more

    answer = ssh(attempt, "echo in")

    assert answer.stdout == "in\n"
    wait_until(lambda: not shell.count_open(supervisor_of(attempt)), PATIENCE_S, attempt.everything)


def supervisor_of(attempt: Attempt) -> int:
    record = json.loads(attempt.folder.supervisor.read_text())
    return int(record["pid"])


def test_shell_says_what_is_wrong_with_a_program_that_is_not_there(
    make_attempt: MakeAttempt, ssh: Ssh, level: int
) -> None:
    attempt = started(make_attempt(WAITS, level=level))

    answer = ssh(attempt, "no-such-program")

    assert answer.returncode == 127
    assert "no-such-program" in answer.stderr


@pytest.mark.skipif(shutil.which("rsync") is None, reason="there is no rsync")
def test_rsync_copies_a_folder(make_attempt: MakeAttempt, level: int, tmp_path: Path) -> None:
    attempt = started(make_attempt(WAITS, level=level))
    (tmp_path / "many").mkdir()
    for number in range(50):
        (tmp_path / "many" / f"{number}").write_text("x" * number)
    *words, _ = [*client(attempt), ""]

    subprocess.run(
        ["rsync", "-a", "-e", " ".join(f"'{word}'" for word in words), f"{tmp_path}/many", "run:"],
        check=True,
        timeout=PATIENCE_S,
    )

    assert len(list((attempt.work / "many").iterdir())) == 50
