"""Processes of a run that a signal has stopped are told, once, and that they go on again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from orchestrator.agent.watches.halts import LOOKS, HaltWatch
from orchestrator.facts.events import Happened
from orchestrator.supervisor.linux.processes import boot_id, identify, is_halted
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import write_record
from tests.waiting import wait_until

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], check=False)"


def test_a_stopped_process_is_told_once_and_that_it_goes_on(tmp_path: Path):
    folder, watch = AttemptFolder(tmp_path), HaltWatch()
    # A process of its own, since other tests may have left a stopped process below this one.
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE) as parent:
        us = identify(parent.pid)
        assert us is not None
        write_record(folder.supervisor, {"pid": us.pid, "start_ticks": us.start_ticks, "boot_id": us.boot_id})
        wait_until(psutil.Process(parent.pid).children)
        [rank] = psutil.Process(parent.pid).children()
        assert [watch.look(folder) for _ in range(3)] == [None] * 3
        os.kill(rank.pid, signal.SIGSTOP)
        wait_until(lambda: is_halted(rank.pid))

        told = [watch.look(folder) for _ in range(LOOKS + 2)]

        os.kill(rank.pid, signal.SIGCONT)
        wait_until(lambda: not is_halted(rank.pid))
        told += [watch.look(folder) for _ in range(2)]
        parent.communicate()
    happened = [(news.code, news.facts["pid"]) for news in told if news is not None]
    assert happened == [(Happened.PROCESS_STOPPED, rank.pid), (Happened.PROCESS_CONTINUED, rank.pid)]


def test_a_supervisor_of_another_server_is_not_looked_for_here(tmp_path: Path):
    folder = AttemptFolder(tmp_path)
    write_record(folder.supervisor, {"pid": 1, "start_ticks": 1, "boot_id": f"not {boot_id()}"})

    assert [HaltWatch().look(folder) for _ in range(3)] == [None] * 3
