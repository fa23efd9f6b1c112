"""``manage.py pilot``: what an allocation of Slurm or Kubernetes runs; a server joins while it lasts, and nothing stays."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from django.core.management.base import BaseCommand, CommandParser

LOOK_EVERY_S = 0.2
_PR_SET_CHILD_SUBREAPER = 36


class Command(BaseCommand):
    help = "Join as a server for as long as an allocation lasts; Berth submits this itself."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("head", help="address that the other server has in its BERTH_NODES")
        parser.add_argument("--token-file", type=Path, required=True, help="file with that server's token")
        parser.add_argument("--name", required=True, help="of this server, for people")
        parser.add_argument("--folder", type=Path, required=True, help="removed at the end, with all in it")
        parser.add_argument("--lasts-s", type=float, required=True, help="seconds until the allocation ends")

    def handle(self, *args: Any, **options: Any) -> None:
        guard = Guard(options["folder"], options["lasts_s"])
        command = [sys.executable, "-m", "orchestrator.management", "node", "join", options["head"]]
        guard.run([*command, "--token-file", str(options["token_file"]), "--name", options["name"]])


class Guard:
    """Keeps every process of the allocation below itself, so that none outlives it.

    Supervisors leave the process tree that starts them, and not every Slurm finds such processes at an allocation's end.
    A job whose allocation has ended goes on elsewhere, so a run that stayed would run twice.
    """

    def __init__(self, folder: Path, lasts_s: float) -> None:
        self._folder = folder
        self._until_s = time.monotonic() + lasts_s
        self._is_over = False

    def run(self, command: list[str]) -> None:
        """Run until the command ends, a signal comes, or the time is over; then end everything."""
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "this process cannot adopt those of its jobs")
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, self._stop)
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603  # our own command
        try:
            while not self._is_over and time.monotonic() < self._until_s and child.pid not in _reaped():
                time.sleep(LOOK_EVERY_S)
        finally:
            end_all()
            shutil.rmtree(self._folder, ignore_errors=True)
        child.returncode = child.returncode or 0  # it was reaped here

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_over = True


def end_all() -> None:
    """SIGKILL every process below this one, and any that are adopted in the process, until no process is left."""
    while children := psutil.Process().children(recursive=True):
        for process in children:
            try:
                process.kill()
            except psutil.Error:
                continue
        _reaped()
        time.sleep(0.02)


def _reaped() -> set[int]:
    """Take the ends of processes below this one; their ids."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.add(pid)
