"""Copies of a rank that go on after it as daemons.  Standard library only."""

# No pathlib: importing it would double the time to the script's first line.
# ruff: noqa: PTH123

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import os
import sys

from . import PID, RANK, TYPE_CHECKING
from .ending import write_whole

if TYPE_CHECKING:
    from typing import NoReturn

_LEAVES_WITHIN_S = 0.5


def watch_forks(folder: str) -> None:
    """Note at the exit of a rank how many copies of it go on as daemons, as they do if the script becomes one.

    Its sandbox ends with it, so nobody outside can see them.
    """
    forks: list[bool] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(True) if not forks else None)
    really_exit = os._exit

    def exit_now(status: int) -> NoReturn:
        if status == 0 and forks and os.getpid() == PID:
            try:
                if count := _count_daemons():
                    write_whole(f"{folder}/finished/left{RANK}", f"{count}\n")
            finally:
                really_exit(status)
        really_exit(status)

    # A script may hand it to another process, which then finds its own by these names.
    exit_now.__module__, exit_now.__qualname__, exit_now.__name__ = "os", "_exit", "_exit"
    os._exit = exit_now  # for the script, too


def _count_daemons() -> int:
    """How many copies of this process live on: in another session, or forked by the script itself.

    A copy that was forked just now gets a moment to leave for a session of its own, or to end.
    """
    import time

    until_s = time.monotonic() + _LEAVES_WITHIN_S
    was_empty = False  # a copy that forks and exits during a look hides both; the next look finds the second
    while True:
        copies = _copies()
        sessions = [_session_of(pid) for pid in copies]
        count = sum(session not in (None, os.getsid(0)) for session in sessions)
        if count or (was_empty and not sessions):
            return count
        if time.monotonic() > until_s:
            return _count_own_forks(copies)
        was_empty = not sessions
        time.sleep(0.0 if was_empty else 0.01)


def _count_own_forks(copies: list[int]) -> int:
    """How many of these copies are no workers: multiprocessing does not know them, and no copy is their parent."""
    process = sys.modules.get("multiprocessing.process")
    started = [getattr(child, "_popen", None) for child in getattr(process, "_children", ())]
    workers = {getattr(popen, "pid", None) for popen in started}
    return sum(pid not in workers and _parent_of(pid) not in (None, *copies) for pid in copies)


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # it has just ended
        return None


def _copies() -> list[int]:
    """Processes that were forked from this one and live; programs that they executed have other arguments."""
    own = _start_of("self")
    names = os.listdir("/proc")  # noqa: PTH208 -- names alone
    pids = (name for name in names if name.isdigit() and int(name) != PID)
    return [] if own is None else [int(pid) for pid in pids if _start_of(pid) == own]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has just ended
        return None


def _start_of(pid: str) -> tuple[bytes, bytes] | None:
    """The arguments and the environment that a process began with; None if it is gone or another user's."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read()
        with open(f"/proc/{pid}/environ", "rb") as file:
            return arguments, file.read()
    except OSError:
        return None
