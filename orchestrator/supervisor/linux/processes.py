"""Identifies processes: pids are reused, so an identity is (boot id, pid, start time)."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessRecord(TypedDict):
    boot_id: str
    pid: int
    start_ticks: int


class ProcessId:
    """One process, distinct from any later process with the same pid."""

    __slots__ = ("boot_id", "pid", "start_ticks")

    def __init__(self, boot_id: str, pid: int, start_ticks: int) -> None:
        self.boot_id = boot_id
        self.pid = pid
        self.start_ticks = start_ticks  # field 22 of /proc/<pid>/stat

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessId) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"ProcessId{self._key()}"

    def _key(self) -> tuple[str, int, int]:
        return self.boot_id, self.pid, self.start_ticks

    def to_record(self) -> ProcessRecord:
        return {"boot_id": self.boot_id, "pid": self.pid, "start_ticks": self.start_ticks}


def from_record(record: object) -> ProcessId | None:
    """The process in a record; None for an incomplete record."""
    if not isinstance(record, Mapping):
        return None
    boot_id, pid, ticks = record.get("boot_id"), record.get("pid"), record.get("start_ticks")
    if isinstance(boot_id, str) and isinstance(pid, int) and isinstance(ticks, int):
        return ProcessId(boot_id, pid, ticks)
    return None


def boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def identify(pid: int) -> ProcessId | None:
    """The process that has ``pid`` now; None without one."""
    ticks = _start_ticks(pid)
    return None if ticks is None else ProcessId(boot_id(), pid, ticks)


def identify_dead(pid: int) -> ProcessId | None:
    """Identify a process even if it is a zombie."""
    fields = _stat(pid)
    return None if fields is None else ProcessId(boot_id(), pid, int(fields[19]))


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs; a zombie does not."""
    fields = _stat(process.pid)
    if fields is None or fields[0] in ("Z", "X") or int(fields[19]) != process.start_ticks:
        return False
    return boot_id() == process.boot_id


def is_stopped(process: ProcessId) -> bool:
    """Whether this very process is stopped, by SIGSTOP or by a tracer."""
    fields = _stat(process.pid)
    return fields is not None and int(fields[19]) == process.start_ticks and fields[0] in ("T", "t")


def is_halted(pid: int) -> bool:
    """Whether a process is stopped by a signal; one that a debugger holds is not."""
    fields = _stat(pid)
    return fields is not None and fields[0] == "T"


def is_over(process: ProcessId) -> bool:
    """Whether all threads of this very process have ended, reaped or not.

    A program whose main thread ended while others run is a zombie, too, but not over.
    """
    fields = _stat(process.pid)
    if fields is None or int(fields[19]) != process.start_ticks:
        return True
    return fields[0] in ("Z", "X") and int(fields[17]) <= 1


def send_signal(process: ProcessId, number: int) -> bool:
    """Signal this very process; False if it is gone, even if another process has its pid by now."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The descriptor pins the receiver; only after that is it safe to compare the start time.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def children(pid: int) -> list[int]:
    """The direct children; empty for a process that is gone."""
    pids: list[int] = []
    try:
        with os.scandir(f"/proc/{pid}/task") as threads:
            for thread in threads:
                pids += map(int, _read(f"{thread.path}/children").split())
    except OSError:
        pass  # the process ended during the read
    return pids


def descendants(pid: int) -> list[int]:
    """Every living process below ``pid``, parents before children."""
    if not _children_files_exist():
        return _descendants_by_scan(pid)
    pids = children(pid)
    for child in pids:  # grows during the loop
        pids += children(child)
    return pids


def with_nonce(nonce: str) -> list[int]:
    """Every visible process whose environment has this nonce, anywhere in the tree.

    The environment of a process reads as empty for an instant while it executes a new program. Processes with an
    empty environment are therefore read a second time.
    """
    wanted = f"BERTH_NONCE={nonce}".encode()
    environments = {pid: environ(pid) for pid in _all_pids()}
    return [
        pid
        for pid, entries in environments.items()
        if wanted in (environ(pid) if entries == [b""] else entries)
    ]


def environ(pid: int) -> list[bytes]:
    """The ``NAME=value`` entries that the process was started with; empty if it is gone or not readable."""
    try:
        return _read_bytes(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return []


def rank_of(pid: int) -> int | None:
    """The rank in a process's initial environment; data-loader workers inherit their parent's."""
    for entry in environ(pid):
        if entry.startswith(b"RANK="):
            value = entry[5:]
            return int(value) if value.isdigit() else None
    return None


def name_of(pid: int) -> str:
    """The kernel's name of a process; empty if it is gone."""
    try:
        return _read(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def handles(pid: int, number: int) -> bool:
    """Whether the process catches this signal."""
    return _signal_in_mask(pid, "SigCgt", number)


def ignores(pid: int, number: int) -> bool:
    return _signal_in_mask(pid, "SigIgn", number)


def used_ticks(pid: int) -> int | None:
    """Processor time of a process in clock ticks, with that of its children that have ended; None if it is gone."""
    fields = _stat(pid)
    return None if fields is None else sum(int(each) for each in fields[11:15])


def has_foreground_program(pid: int) -> bool:
    """Whether the process leads a terminal's session, as a shell does, and another group is in the foreground there."""
    fields = _stat(pid)
    if fields is None:
        return False
    group, session, terminal, foreground = (int(each) for each in fields[2:6])
    return terminal != 0 and session == pid and foreground not in (-1, group)


def status_lines(pid: int, name: str = "status") -> list[str]:
    """The lines of a file below /proc/<pid>; empty if the process is gone or the file is not readable."""
    try:
        return _read(f"/proc/{pid}/{name}").splitlines()
    except OSError:
        return []


def _signal_in_mask(pid: int, field: str, number: int) -> bool:
    for line in status_lines(pid):
        if line.startswith(field):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _start_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """Fields 3 and on of /proc/<pid>/stat.

    [0] state, [1] parent, [2] group, [3] session, [4] terminal, [5] its foreground group, [11:15] processor time,
    [17] threads, [19] start time.
    """
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name in brackets may hold anything


def _descendants_by_scan(pid: int) -> list[int]:
    """For kernels without CONFIG_PROC_CHILDREN."""
    below: dict[int, list[int]] = {}
    for other in _all_pids():
        fields = _stat(other)
        if fields is not None:
            below.setdefault(int(fields[1]), []).append(other)
    pids = list(below.get(pid, ()))
    for child in pids:
        pids += below.get(child, ())
    return pids


def _children_files_exist() -> bool:
    return os.access("/proc/thread-self/children", os.R_OK)


def _all_pids() -> list[int]:
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def _read(path: str) -> str:
    return _read_bytes(path).decode(errors="replace")


def _read_bytes(path: str) -> bytes:
    # Plain descriptors: this runs for every process each second, and buffered files cost three times as much.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while chunk := os.read(fd, 1 << 16):
            data += chunk
        return data
    finally:
        os.close(fd)
