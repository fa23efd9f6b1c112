"""What an allocation runs leaves nothing behind, even processes that left the tree of whoever started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

GUARD = """
import sys, pathlib
from orchestrator.management.commands.pilot import Guard
Guard(pathlib.Path(sys.argv[1]), float(sys.argv[2])).run([sys.executable, "-c", sys.argv[3]])
"""
# Starts a process of its own session and ends the one between, as a supervisor is started.
DETACHES = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        path = pathlib.Path({path!r})
        path.with_suffix(".part").write_text(str(os.getpid()))
        path.with_suffix(".part").replace(path)
        time.sleep(600)
    os._exit(0)
time.sleep({stays})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "berth-pilot-test"
    (folder / "home").mkdir(parents=True)
    return folder


def begin(
    folder: Path, noted: Path, *, stays: float = 600, lasts_s: float = 600
) -> "subprocess.Popen[bytes]":
    code = DETACHES.format(path=str(noted), stays=stays)
    return subprocess.Popen([sys.executable, "-c", GUARD, str(folder), str(lasts_s), code])


def is_gone(pid: int) -> bool:
    return not Path("/proc", str(pid)).exists()


def test_signal_ends_everything_and_removes_the_folder(folder, tmp_path):
    guard = begin(folder, tmp_path / "pid")
    wait_until((tmp_path / "pid").exists)
    detached = int((tmp_path / "pid").read_text())

    guard.send_signal(signal.SIGTERM)
    guard.wait(300)

    assert is_gone(detached)
    assert not folder.exists()


def test_end_of_the_joined_server_ends_what_it_started(folder, tmp_path):
    guard = begin(folder, tmp_path / "pid", stays=1)
    wait_until((tmp_path / "pid").exists)
    detached = int((tmp_path / "pid").read_text())

    guard.wait(300)

    assert is_gone(detached)
    assert not folder.exists()


def test_everything_ends_when_the_time_is_over(folder, tmp_path):
    guard = begin(folder, tmp_path / "pid", lasts_s=3)

    guard.wait(300)

    noted = tmp_path / "pid"
    assert not noted.exists() or is_gone(int(noted.read_text()))
    assert not folder.exists()


def test_zombies_of_detached_processes_are_taken(folder, tmp_path):
    guard = begin(folder, tmp_path / "pid")
    wait_until((tmp_path / "pid").exists)
    detached = int((tmp_path / "pid").read_text())

    os.kill(detached, signal.SIGKILL)

    wait_until(lambda: is_gone(detached))
    guard.send_signal(signal.SIGTERM)
    guard.wait(300)
