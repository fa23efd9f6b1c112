"""Finds the processes of a command that train: those that a stop has to reach.

Launchers, shells and ``make`` only wait for what they started; a signal to them would not reach it, or would end it
without time to save.
"""

import signal
from pathlib import Path

from orchestrator.supervisor.linux.processes import ProcessId, children, handles, identify, rank_of

_WAITS = "do_wait"  # the kernel's function in which a process waits for its children
_MOST = 4096


def leaders(top: ProcessId) -> dict[int, ProcessId]:
    """The ranks that a command started, by their numbers; if none has one, the processes that do its work, from 0.

    Below a rank or a worker are only its own helpers, such as data loaders.
    """
    ranks: dict[int, ProcessId] = {}
    workers: list[ProcessId] = []
    pending = [top.pid]
    for pid in pending:  # grows during the loop
        process, rank = identify(pid), rank_of(pid)
        if process is None:
            continue
        if rank is not None:
            ranks.setdefault(rank, process)
            continue
        below = children(pid)
        # A launcher of ranks may catch signals or not, so ranks are searched below every process.
        pending += below[: _MOST - len(pending)]
        if not below or not _only_waits(pid):
            workers.append(process)
    return ranks or dict(enumerate(_topmost(workers)))


def _only_waits(pid: int) -> bool:
    """Whether a process waits for its children, and would not do anything about a signal."""
    if handles(pid, signal.SIGTERM) or handles(pid, signal.SIGUSR1):
        return False
    try:
        return Path(f"/proc/{pid}/wchan").read_text() == _WAITS
    except OSError:
        return False


def _topmost(workers: list[ProcessId]) -> list[ProcessId]:
    """Those that are not below another one; parents come before their children."""
    helpers: set[int] = set()
    found = []
    for process in workers:
        if process.pid not in helpers:
            found.append(process)
            below = children(process.pid)
            for pid in below:  # grows during the loop
                below += children(pid)
            helpers.update(below)
    return found
