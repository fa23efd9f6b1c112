"""Processes of ours that an earlier start of this home left behind, and their end.

Each service writes who it is before it becomes its program, so none is missed and none is mistaken: a process
is ended only if boot, pid and start time are those of the record in this home. Trainings are not among them:
each supervisor has a session of its own.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import lock
from orchestrator.store.layout import Home
from orchestrator.supervisor.processes import (
    ProcessId,
    environ,
    from_record,
    identify,
    is_alive,
    send_signal,
)
from orchestrator.supervisor.records import read_record, write_record

TERMINATE_WITHIN_S = 8.0
KILL_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """One service that runs although nobody watches it."""

    name: str
    process: ProcessId


def record_self(home: Home, name: str) -> None:
    """Write that this process is (or is about to become) the service of this name.

    Raises:
        OSError: the folder is full or read-only.
    """
    process = identify(os.getpid())
    assert process is not None  # noqa: S101  # we run
    write_record(_record(home, name), process.to_record())


def find(home: Home) -> list[Leftover]:
    """The recorded services that run, and what a dead one left of its session (a worker's children).

    Only for whoever holds the lock of ``up``, or knows that nobody does: else they are somebody's services.
    """
    found = []
    for path in sorted(home.services.glob("*.json")):
        recorded = from_record(read_record(path))
        if recorded is None:
            continue
        members = [recorded] if is_alive(recorded) else []
        members += _session(recorded, home)
        found += [Leftover(path.stem, each) for each in members]
    return found


def end(home: Home, tell: Callable[[str], object]) -> bool:
    """End what an earlier start left, and an agent that holds its lock without working.

    SIGTERM first. A stopped process is ended like any other.

    Returns:
        False where something could not be proven dead (it hangs in the kernel).
    """
    left = find(home)
    for name in dict.fromkeys(each.name for each in left):
        pids = ", ".join(str(each.process.pid) for each in left if each.name == name)
        tell(f"Ending {name} (pid {pids}), which an earlier start of {home.root} left.")
    _signal(left, signal.SIGTERM)
    _signal(left, signal.SIGCONT)  # a stopped one hears SIGTERM only then
    if not _wait(left, TERMINATE_WITHIN_S):
        _signal(left, signal.SIGKILL)
    ended = _wait(left, KILL_WITHIN_S)
    return end_silent_agent(home, tell) and ended


def end_silent_agent(home: Home, tell: Callable[[str], object]) -> bool:
    """End the holder of the agent's lock where it does not work, whoever started it."""
    holder = lock.silent_holder(home)
    if holder is None:
        return True
    tell(f"Ending the agent ({holder}): it holds its lock but does not work.")
    return holder.end()


def _session(leader: ProcessId, home: Home) -> list[ProcessId]:
    """What lives of the session of a service, without the service itself."""
    now = identify(leader.pid)
    if now is not None and now != leader:  # the pid is somebody else's by now, and so is the session
        return []
    mark = b"BERTH_HOME=" + os.fsencode(home.root)
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == leader.pid:
            continue
        pid = int(entry.name)
        process = identify(pid)
        if process is None or process.start_ticks < leader.start_ticks:
            continue
        if _session_of(pid) == leader.pid and mark in environ(pid) and leader.boot_id == process.boot_id:
            found.append(process)
    return found


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _signal(left: Iterable[Leftover], number: int) -> None:
    for each in left:
        send_signal(each.process, number)


def _wait(left: Iterable[Leftover], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while any(is_alive(each.process) for each in left):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def _record(home: Home, name: str) -> Path:
    return home.services / f"{name}.json"
