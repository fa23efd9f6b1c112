"""Notices stalled runs: ranks that write nothing, and caretakers that were stopped.

The sandbox ends when bubblewrap's pid 1 reaps the run's first process, and a failed rank is noticed when torchrun reaps
it.  If such a caretaker is stopped, from inside or outside, the run keeps its devices for ever.
"""

import os
from pathlib import Path

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact
from orchestrator.supervisor.linux.processes import ProcessId, from_record, is_alive, is_over, is_stopped
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.ranks.run import Run

STOPPED_LOOKS = 3  # one a second: a debugger stops a process for an instant
OVER_LOOKS = 10


class HangWatch:
    """Watches the sizes of files; a growing file is a sign of life."""

    def __init__(self, metrics: Path, logs: dict[int, Path], timeout_s: float, now_s: float) -> None:
        self._paths: dict[int | None, Path] = {None: metrics}
        self._paths |= {rank: log for rank, log in logs.items()}  # noqa: C416 -- the key type widens
        self._timeout_s = timeout_s
        self._sizes = dict.fromkeys(self._paths, 0)
        self._grew_s = dict.fromkeys(self._paths, now_s)

    def check(self, now_s: float) -> Fact | None:
        """How long each rank has been silent, once no file grew for the whole time-out, else None."""
        for name, path in self._paths.items():
            try:
                size = os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116 -- each second, for each rank
            except OSError:
                continue
            if size != self._sizes[name]:
                self._sizes[name], self._grew_s[name] = size, now_s
        if now_s - max(self._grew_s.values()) < self._timeout_s:
            return None
        silent_s = [now_s - grew_s for rank, grew_s in self._grew_s.items() if rank is not None]
        first = min((rank for rank in self._grew_s if rank is not None), default=0)
        named = {"first_rank": first} if first else {}
        return fact(Ended.HUNG, timeout_s=self._timeout_s, silent_s=silent_s, **named)


class ReapingWatch:
    """Watches the caretakers of one run.  Counts looks, not seconds, because the supervisor itself may be stopped."""

    def __init__(self) -> None:
        self._stopped_looks: dict[str, int] = {}
        self._over_looks = 0

    def check(self, run: Run) -> Fact | None:
        """What happened, if a caretaker is stopped or overlooks an end; call once a second."""
        for name, process in run.caretakers().items():
            looks = self._stopped_looks.get(name, 0) + 1 if is_stopped(process) else 0
            self._stopped_looks[name] = looks
            if looks >= STOPPED_LOOKS:
                return fact(Ended.CARETAKER_STOPPED, name=name)
        self._over_looks = self._over_looks + 1 if _is_unnoticed(run.init, run.top()) else 0
        if self._over_looks >= OVER_LOOKS:
            return fact(Ended.END_UNNOTICED)
        return None


def find_stopped(folder: AttemptFolder) -> list[str]:
    """The stopped caretakers of an attempt, including its supervisor, from its folder alone."""
    identity, sandbox = read_record(folder.supervisor) or {}, read_record(folder.sandbox) or {}
    rows = {"its supervisor": identity, "bubblewrap": sandbox.get("bwrap"), "its pid 1": sandbox.get("init")}
    if not sandbox.get("level"):
        rows.pop("its pid 1")  # without a sandbox this row is the script itself
    caretakers = {
        name: from_record({"boot_id": identity.get("boot_id"), **row})
        for name, row in rows.items()
        if isinstance(row, dict)
    }
    return [name for name, process in caretakers.items() if process is not None and is_stopped(process)]


def _is_unnoticed(init: ProcessId | None, top: ProcessId | None) -> bool:
    return init is not None and top is not None and is_over(top) and is_alive(init)
