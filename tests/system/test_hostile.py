"""A script that wants everything it should not have; its page tells what happened (sections 3.5 and 8)."""

import html
import json
import os
import socket
from collections.abc import Callable

import pytest

from orchestrator.supervisor.sandbox import bwrap, landlock
from tests.system.queue_page import signed_in
from tests.system.server import Server, alive
from tests.system.trainings import train

pytestmark = pytest.mark.slow

LOOKS_AROUND = r"""
import glob, json, os, pathlib, socket, subprocess
found = {}
def attempt(name, act):
    try:
        found[name] = act()
    except BaseException as error:
        found[name] = f"refused: {type(error).__name__}"
home = os.environ["LOOK_AT"]
attempt("database", lambda: len(pathlib.Path(home, "db.sqlite3").read_bytes()))
attempt("secret_key", lambda: pathlib.Path(home, "secret_key").read_text())
attempt("other_jobs", lambda: [path for path in glob.glob(os.path.join(home, "jobs", "*", "work", "*")) if "SEC" + "RET" in open(path).read()])
def environment_of(path):
    try:
        return open(path, "rb").read()
    except PermissionError:  # the sandbox's own init
        return b""
attempt("environments", lambda: [
    path for path in glob.glob("/proc/[0-9]*/environ") if b"OF_ANOTHER_JOB" in environment_of(path)
])
attempt("processes", lambda: len(glob.glob("/proc/[0-9]*")))
def redis():
    for path in glob.glob(home + "/redis/*") + [os.environ["LOOK_AT_REDIS"]]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            return path
attempt("redis", redis)
def abstract():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(chr(0) + os.environ["LOOK_AT_ABSTRACT"])
        return "reached"
attempt("abstract", abstract)
attempt("berth_variables", lambda: sorted(name for name in os.environ if "TOKEN" in name or "KEY" in name))
attempt("ptrace", lambda: subprocess.run(["strace", "-p", "1"], capture_output=True).returncode)
attempt("system", lambda: pathlib.Path("/etc/berth-was-here").write_text("x"))
attempt("sessions", lambda: pathlib.Path("/var/tmp/berth-was-here").write_text("x"))
checkpoints = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"])
attempt("link", lambda: (checkpoints / "latest").symlink_to("/etc"))
attempt("file_link", lambda: (checkpoints / "ckpt.pt").symlink_to("/etc/passwd"))
print(json.dumps(found), flush=True)
print("<img src=x onerror=alert(1)> <script>alert(2)</script> \x1b]0;owned\x07\x1b[31mred\x1b[0m", flush=True)
"""
REFUSES_TO_LEAVE = r"""
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        print("daemon", flush=True)
        time.sleep(600)
    os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""
TAKES_ALL_PROCESSES = """
import os, time
while True:
    if os.fork() == 0:
        time.sleep(600)
"""
TAKES_ALL_MEMORY = """
held = []
while True:
    held.append(bytearray(16 << 20))
"""
TAKES_ALL_DISK = """
import os, time
with open("big", "wb") as file:
    for number in range(24):
        os.posix_fallocate(file.fileno(), number << 26, 1 << 26)
        time.sleep(0.1)
time.sleep(600)
"""
HOLDS_A_NOTE = (
    "import time; open('note.txt', 'w').write('SECRET'); print('ready', flush=True); time.sleep(600)"
)


@pytest.fixture
def sandboxed() -> None:
    if bwrap.detect() < 1:
        pytest.skip("bubblewrap does not work on this machine")


def test_t13_a_script_that_looks_around_finds_nothing(server: Server, sandboxed: None) -> None:
    neighbour = server.submit(HOLDS_A_NOTE, env={"OF_ANOTHER_JOB": "yes"})
    server.wait_for_line(neighbour, "ready")

    redis = server.home / "redis/redis.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0berth-test-{os.getpid()}")
        other.listen()
        environment = {
            "LOOK_AT": str(server.home),
            "LOOK_AT_REDIS": str(redis),
            "LOOK_AT_ABSTRACT": other.getsockname()[1:].decode(),
        }
        job = server.submit(LOOKS_AROUND, env=environment, max_retries=0)
        ended = server.wait_for_end(job)
    server.post(f"/jobs/{neighbour}/cancel")
    server.wait_for_end(neighbour)

    assert ended["state"] == "succeeded", (ended["reason"], server.log(job))
    found = json.loads(server.log(job).splitlines()[0])
    for name in ("database", "secret_key", "redis", "system", "sessions"):
        assert str(found[name]).startswith("refused"), (name, found[name])
    assert found["other_jobs"] == []
    assert found["environments"] == []
    assert found["processes"] < 10
    assert found["berth_variables"] == []
    assert found["ptrace"] != 0  # of strace, where it is installed
    kept = server.attempts(job)[-1]["sandbox"]
    assert kept["level"] >= 1
    walls = [wall["name"] for wall in kept["walls"]]
    assert ("landlock" in walls) == (kept["level"] > 1 and landlock.version() > 0)
    if "landlock" in walls:
        assert landlock.version() < 6 or found["abstract"] == "refused: PermissionError"


def test_b58_links_it_left_among_its_checkpoints_lead_nowhere(server: Server, sandboxed: None) -> None:
    job = server.submit(
        LOOKS_AROUND, env={"LOOK_AT": str(server.home), "LOOK_AT_REDIS": "/none"}, max_retries=0
    )
    server.wait_for_end(job)

    assert server.get(f"/jobs/{job}/checkpoints")["results"] == []
    files = server.get(f"/jobs/{job}/files")["results"]
    assert not [each for each in files if "passwd" in each["path"] or "etc" in each["path"]]


def test_t16_a_script_that_refuses_to_leave_is_gone_with_its_daemon(server: Server) -> None:
    job = server.submit(REFUSES_TO_LEAVE, grace_period_s=1)
    server.wait_for_line(job, "daemon")
    members = server.members(job)
    assert len(members) >= 2

    server.post(f"/jobs/{job}/cancel")
    ended = server.wait_for_end(job)

    assert ended["state"] == "cancelled"
    server.wait_until(lambda: not alive(members), limit_s=10)
    with signed_in(server) as browser:
        page = html.unescape(browser.get(f"/jobs/{job}").text)
    assert "did not end within 1 s" in page


def test_t15_what_takes_all_there_is_meets_its_limit_and_its_page_says_which(
    make_server: Callable[..., Server], sandboxed: None
) -> None:
    server = make_server("cpu:4", {"BERTH_JOB_DISK_GIB": "1"}).start()
    neighbour = train(server, 100)
    jobs = {
        "limit of 4,096": server.submit(TAKES_ALL_PROCESSES, max_retries=0),
        "its limit of 0.25 GiB": server.submit(TAKES_ALL_MEMORY, memory_gib=0.25, max_retries=0),
        "of disk, more than its limit of 1.0 GiB": server.submit(TAKES_ALL_DISK, max_retries=0),
    }

    with signed_in(server) as browser:
        for words, job in jobs.items():
            assert server.wait_for_end(job, limit_s=120)["state"] == "failed", words
            page = html.unescape(browser.get(f"/jobs/{job}").text)
            assert words in page
            assert server.attempts(job)[-1]["sandbox"]["level"] == bwrap.detect()
        ended = server.wait_for_end(neighbour)
    assert (ended["state"], ended["attempt_count"]) == ("succeeded", 1)
    assert not [pid for job in jobs.values() for pid in server.members(job)]
