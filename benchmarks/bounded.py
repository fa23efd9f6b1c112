"""``python -m benchmarks.bounded SECONDS COMMAND...``: runs a command, and ends all that it started, at the latest after this time.

A limit on the command alone is not enough: what it started would go on, hold the GPU and keep the output open.
Even processes that left its group, as supervisors of jobs do, become children of this process and are found.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import psutil

from orchestrator.supervisor.linux.kernel import become_subreaper

TIMED_OUT = 124  # as timeout(1)
END_WITHIN_S = 20.0  # a process that waits for the driver inside the kernel cannot be ended at all


def main(arguments: Sequence[str]) -> int:
    """Return the command's exit status, or ``TIMED_OUT``."""
    limit_s, command = float(arguments[0]), [*arguments[1:]]
    signal.signal(signal.SIGTERM, _leave)
    become_subreaper()
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL).wait(limit_s)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        for pid in end_descendants():
            print(f"Process {pid} cannot be ended.", file=sys.stderr)


def end_descendants(within_s: float = END_WITHIN_S) -> list[int]:
    """Kill every process below this one; return those that are still there after ``within_s``."""
    deadline_s = time.monotonic() + within_s
    while True:
        running = [each for each in psutil.Process().children(recursive=True) if _runs(each)]
        if not running or time.monotonic() > deadline_s:
            return [each.pid for each in running]
        for process in running:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.02)
        _reap()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
