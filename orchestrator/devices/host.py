"""This host: its load and memory, and its processes with their attempts.

A process belongs to an attempt if ``BERTH_NONCE`` in its environment, or in that of its nearest ancestor with one, is
the attempt's nonce.  Names and ids that a process gives itself prove nothing.
"""

import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from orchestrator.devices.types import HostReading

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SETTLED_S = 2.0  # a younger process may be between fork and exec, still with its parent's environment
_COMMAND_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Mark:
    """Berth's variables in a process's environment; None for missing ones."""

    nonce: str | None = None
    local_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """One process at the moment of a scan."""

    pid: int
    parent: int
    started_ticks: int  # since boot; unique together with the pid
    cpu_s: float
    resident_bytes: int
    mark: Mark


UNMARKED = Mark()


class ProcessTable:
    """Scans /proc, and reads each environment once."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._marks: dict[tuple[int, int], Mark] = {}

    def scan(self) -> dict[int, Process]:
        """Every visible process, by pid."""
        names = os.listdir(self._proc)  # noqa: PTH208 - iterdir makes a Path of each
        return self._observe([int(name) for name in names if name.isdigit()])

    def look(self, pids: Iterable[int]) -> dict[int, Process]:
        """The given processes and their ancestors by pid, if visible."""
        return self._observe(list(pids))

    def _observe(self, pids: list[int]) -> dict[int, Process]:
        settled_ticks = (_uptime_s(self._proc) - _SETTLED_S) * _TICKS_PER_S
        found: dict[int, Process] = {}
        marks: dict[tuple[int, int], Mark] = {}
        while pids:
            pid = pids.pop()
            if pid in found or not (fields := _stat(f"{self._proc}/{pid}/stat")):
                continue
            started = int(fields[19])
            mark = self._marks.get((pid, started)) or _mark(f"{self._proc}/{pid}/environ")
            if started < settled_ticks:
                marks[pid, started] = mark
            cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
            resident_bytes = int(fields[21]) * _PAGE_BYTES
            found[pid] = Process(pid, int(fields[1]), started, cpu_s, resident_bytes, mark)
            pids.append(found[pid].parent)
        self._marks = marks
        return found

    def age_s(self, process: Process) -> float:
        """For how long a process has run."""
        return max(0.0, _uptime_s(self._proc) - process.started_ticks / _TICKS_PER_S)

    def command(self, pid: int) -> str:
        """The command line, shortened; empty if it is not readable."""
        try:
            with open(f"{self._proc}/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - twice as fast, 80 times a second
                words = file.read(4 * _COMMAND_LENGTH).split(b"\0")
        except OSError:
            return ""
        return " ".join(word.decode(errors="replace") for word in words if word)[:_COMMAND_LENGTH]

    def user(self, pid: int) -> str | None:
        """The name of the process's owner; None if it is not visible."""
        try:
            return _user_name(os.stat(f"{self._proc}/{pid}").st_uid)  # noqa: PTH116 - as above
        except OSError:
            return None


def owning_mark(process: Process, processes: Mapping[int, Process]) -> Mark:
    """The mark of a process or of its nearest marked ancestor."""
    seen: set[int] = set()
    current: Process | None = process
    while current is not None and current.pid not in seen:
        if current.mark.nonce is not None:
            return current.mark
        seen.add(current.pid)  # pids may be reused during the scan, so parents may form a circle
        current = processes.get(current.parent)
    return UNMARKED


def _stat(path: str) -> list[bytes] | None:
    """The fields of proc(5) stat from "state" on; None for a process that has ended."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - hundreds of these, twice a second
            line = file.read(4096)
    except OSError:
        return None
    fields = line[line.rfind(b")") + 2 :].split()  # a name may contain anything, even ") "
    return fields if len(fields) > 21 else None


def _mark(path: str) -> Mark:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
            block = file.read()
    except OSError:  # of another user
        return UNMARKED
    if b"BERTH_NONCE=" not in block:
        return UNMARKED
    names = (b"BERTH_NONCE", b"LOCAL_RANK")
    values = dict(line.partition(b"=")[::2] for line in block.split(b"\0") if line.startswith(names))
    nonce, rank = values.get(b"BERTH_NONCE"), values.get(b"LOCAL_RANK", b"")
    if nonce is None:
        return UNMARKED
    return Mark(nonce.decode(errors="replace"), int(rank) if rank.isdigit() else None)


def _uptime_s(proc: str) -> float:
    return float((Path(proc) / "uptime").read_text().split()[0])


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def host_memory_bytes() -> int:
    return int(psutil.virtual_memory().total)


psutil.cpu_percent(interval=None)  # the first call starts the measurement


def read_host(folder: Path = Path("/")) -> HostReading:
    """Read the load of the host and the disk of ``folder``; for one caller per process."""
    memory = psutil.virtual_memory()
    return HostReading(
        cpu_percent=psutil.cpu_percent(interval=None),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
        disk_free_bytes=psutil.disk_usage(str(folder)).free,
        load=os.getloadavg()[0],
    )
