"""`berth shell`, `berth ssh` and `berth forward` as people run them, with a real ssh, in jobs of a real server."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.system.server import Server, free_port
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh"),
]
SERVES = """
import http.server, os, sys
os.chdir(os.path.dirname(os.path.abspath(__file__)))
open("hello", "w").write("from the job")
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("port", server.server_port, flush=True)
server.serve_forever()
"""


def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "BERTH_URL": f"http://127.0.0.1:{server.port}",
        "BERTH_TOKEN": server.token,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


def berth(server: Server, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "berth.cli", *words],
        env=environment(server, tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def job(server: Server) -> str:
    """A job that serves its folder by HTTP on a port that its log tells."""
    job_id = server.submit(SERVES)
    server.wait_for_line(job_id, "port")
    server.wait_for_state(job_id, "running")
    return job_id


def test_command_runs_in_a_job_and_gives_its_exit_status(server: Server, job: str, tmp_path: Path) -> None:
    answer = berth(server, tmp_path, "shell", job, "--", "sh", "-c", "cat hello; exit 3")

    assert answer.stdout == "from the job", answer.stderr
    assert answer.returncode == 3
    audit = [entry["text"] for entry in server.get("/audit?action=job.shell")["results"]]
    assert audit == ["Opened a shell."]


def test_ssh_runs_a_command_after_its_options_and_gives_its_exit_status(
    server: Server, job: str, tmp_path: Path
) -> None:
    one = berth(server, tmp_path, "ssh", job, "--", "cat hello; exit 5")
    several = berth(
        server, tmp_path, "ssh", job, "--", "-o", "LogLevel=ERROR", "sh", "-c", "echo 'a  b'; exit 3"
    )

    assert (one.stdout, one.returncode) == ("from the job", 5), one.stderr
    assert (several.stdout, several.returncode) == ("a  b\n", 3), several.stderr


def test_newest_running_job_is_meant_without_a_name(server: Server, job: str, tmp_path: Path) -> None:
    answer = berth(server, tmp_path, "shell", "--", "echo", "$BERTH_JOB_ID", "a b")

    assert answer.stdout == "$BERTH_JOB_ID a b\n", answer.stderr  # the words arrive as they were given


def test_port_of_a_job_is_reached_here(server: Server, job: str, tmp_path: Path) -> None:
    there = server.wait_for_line(job, "port").split("port")[1].split()[0]
    here = free_port()
    forwarding = subprocess.Popen(
        [sys.executable, "-m", "berth.cli", "forward", job, f"{here}:{there}"],
        env=environment(server, tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _listens(here) or forwarding.poll() is not None)
        with urllib.request.urlopen(f"http://127.0.0.1:{here}/hello", timeout=PATIENCE_S) as answer:
            assert answer.read() == b"from the job"
    finally:
        forwarding.terminate()
        forwarding.wait()


def test_lines_for_the_configuration_let_any_ssh_program_in(server: Server, job: str, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(berth(server, tmp_path, "ssh", "--config").stdout)
    big = os.urandom(5_000_000)
    (tmp_path / "big").write_bytes(big)

    for words in (
        ["scp", "-q", "-F", str(config), str(tmp_path / "big"), f"berth-{server.job(job)['short_id']}:there"],
        [
            "scp",
            "-q",
            "-F",
            str(config),
            f"berth-{server.job(job)['short_id']}:there",
            str(tmp_path / "back"),
        ],
    ):
        subprocess.run(words, env=environment(server, tmp_path), check=True, timeout=PATIENCE_S)

    assert (tmp_path / "back").read_bytes() == big


@pytest.mark.parametrize("words", [["shell"], ["ssh"], ["forward", "6006"]])
def test_job_that_has_ended_is_refused_in_a_sentence(
    server: Server, tmp_path: Path, words: Sequence[str]
) -> None:
    ended = server.submit("print('done')")
    server.wait_for_end(ended)

    answer = berth(server, tmp_path, words[0], ended, *words[1:])

    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "is succeeded; a shell opens while it is running." in answer.stderr


def test_refusal_of_the_server_reaches_whoever_runs_ssh(server: Server, tmp_path: Path) -> None:
    ended = server.submit("print('done')")
    server.wait_for_end(ended)

    answer = berth(server, tmp_path, "connect", f"berth-{ended}")

    assert answer.returncode == 2
    assert answer.stderr == "berth: This job is succeeded; a shell opens while it is running.\n"


def test_shell_outlives_no_cancel(server: Server, job: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "berth.cli", "shell", job, "--", "sh", "-c", "echo in; sleep 3600"],
        env=environment(server, tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == b"in\n"

        server.post(f"/jobs/{job}/cancel")

        assert server.wait_for_end(job)["state"] == "cancelled"
        assert inside.wait(PATIENCE_S) == 255


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        time.sleep(0.05)
        return False
    return True
