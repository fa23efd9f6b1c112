"""Find and end services that an earlier start of this BERTH_HOME left running.

Each service records its identity before it starts its program. A process is ended only if boot id, pid and start
time match a record in this BERTH_HOME. Trainings are not affected: each supervisor has its own session.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import lock
from orchestrator.store.layout import Home
from orchestrator.supervisor.linux.processes import (
    ProcessId,
    environ,
    from_record,
    identify,
    is_alive,
    send_signal,
)
from orchestrator.supervisor.protocol.records import read_record, write_record

TERMINATE_WITHIN_S = 8.0
KILL_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A service that runs unwatched."""

    name: str
    process: ProcessId


def record_self(home: Home, name: str) -> None:
    """Record that this process is, or is about to become, the service of this name.

    Raises:
        OSError: the folder is full or read-only.
    """
    process = identify(os.getpid())
    assert process is not None  # noqa: S101  # this process exists
    write_record(_record(home, name), process.to_record())


def find(home: Home) -> list[Leftover]:
    """Recorded services that run, and the rest of a dead service's session (a worker's children).

    The caller must hold the lock of ``up``, or know that nobody does: otherwise these services are in use.
    """
    leftovers = []
    for path in sorted(home.services.glob("*.json")):
        recorded = from_record(read_record(path))
        if recorded is None:
            continue
        members = [recorded] if is_alive(recorded) else []
        members += _session(recorded, home)
        leftovers += [Leftover(path.stem, process) for process in members]
    return leftovers


def end(home: Home, tell: Callable[[str], object]) -> bool:
    """End leftover services, and an agent that holds its lock without working; SIGTERM first.

    Returns:
        False if a process could not be proven dead, because it hangs in the kernel.
    """
    left = find(home)
    for name in dict.fromkeys(each.name for each in left):
        pids = ", ".join(str(each.process.pid) for each in left if each.name == name)
        tell(f"Ending {name} (pid {pids}), left running by an earlier start of {home.root}.")
    _signal(left, signal.SIGTERM)
    _signal(left, signal.SIGCONT)  # a stopped process handles SIGTERM only then
    if not _wait(left, TERMINATE_WITHIN_S):
        _signal(left, signal.SIGKILL)
    ended = _wait(left, KILL_WITHIN_S)
    return end_silent_agent(home, tell) and ended


def end_silent_agent(home: Home, tell: Callable[[str], object]) -> bool:
    """End an agent that holds its lock without working, no matter who started it."""
    holder = lock.silent_holder(home)
    if holder is None:
        return True
    tell(f"Ending the agent ({holder}): it holds its lock but does not work.")
    return holder.end()


def _session(leader: ProcessId, home: Home) -> list[ProcessId]:
    """Running processes of a service's session, without the service itself."""
    now = identify(leader.pid)
    if now is not None and now != leader:  # the pid was reused, so the session is another one
        return []
    mark = b"BERTH_HOME=" + os.fsencode(home.root)
    members = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == leader.pid:
            continue
        pid = int(entry.name)
        process = identify(pid)
        if process is None or process.start_ticks < leader.start_ticks:
            continue
        if _session_of(pid) == leader.pid and mark in environ(pid) and leader.boot_id == process.boot_id:
            members.append(process)
    return members


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
