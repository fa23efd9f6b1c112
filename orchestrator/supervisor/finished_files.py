"""Which files the ranks have finished writing, written down while they live.

A process that is killed closes its files too, so afterwards nobody can tell a finished file from a torn one.
The agent may be away at that moment; the supervisor is there as long as the run.
"""

import heapq
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.leases import being_written
from orchestrator.supervisor.processes import boot_id
from orchestrator.supervisor.records import VERSION, read_record

SETTLE_S = 2.0  # that the writers lived on after the last write
MOST_FILES = 2_000  # the newest
_MOST_ENTRIES = 20_000
_MOST_DEPTH = 16
_LONGEST_PATH = 1_000
_CLOCK_TICK_NS = 50_000_000  # the kernel's clock for files may be behind
_PAUSE_S = 1.0
_PAUSE_PER_COST = 50  # at most 2 % of a core, however many files there are

Signature = tuple[int, int, int, int]  # inode, size, mtime, ctime


class FinishedFiles:
    """Vouches for files below some folders that were written since the attempt began."""

    def __init__(self, folder: AttemptFolder, roots: Mapping[str, Path]) -> None:
        """``roots``: by how paths below them begin in the record, such as ``work/``."""
        self._folder = folder
        self._roots = roots
        self._began_ns = time.time_ns() - _CLOCK_TICK_NS
        self._first_seen: dict[str, tuple[Signature, float]] = {}  # monotonic
        self._vouched: dict[str, Signature] = {}
        self._looked_s = time.monotonic()
        self._next_look_s = 0.0

    def look(self, now_s: float) -> None:
        """Write down what was finished; call it about once a second, and only while all ranks live.

        Raises:
            OSError: the record could not be written.
        """
        if now_s < self._next_look_s:
            return
        began_s = time.monotonic()
        found = dict(heapq.nlargest(MOST_FILES, self._scan(), key=lambda item: item[1][3]))
        gap_s = now_s - self._looked_s
        self._first_seen = {
            path: self._seen(path, signature, now_s, gap_s) for path, signature in found.items()
        }
        self._looked_s = now_s
        vouched = {path: found[path] for path in found if self._is_finished(path, now_s)}
        if vouched != self._vouched:
            _write(self._folder.finished_files, vouched)
            self._vouched = vouched
        self._next_look_s = now_s + max(_PAUSE_S, _PAUSE_PER_COST * (time.monotonic() - began_s))

    def _seen(self, path: str, signature: Signature, now_s: float, gap_s: float) -> tuple[Signature, float]:
        """Since when a file is what it is: at the earliest since the look before, whatever the clock says."""
        before = self._first_seen.get(path)
        if before is not None and before[0] == signature:
            return before
        age_s = time.time() - signature[3] / 1e9
        return signature, now_s - min(max(0.0, age_s), gap_s)

    def _is_finished(self, path: str, now_s: float) -> bool:
        signature, since_s = self._first_seen[path]
        if self._vouched.get(path) == signature:
            return True
        return now_s - since_s >= SETTLE_S and self._is_closed(path, signature)

    def _is_closed(self, path: str, signature: Signature) -> bool:
        prefix = next(prefix for prefix in self._roots if path.startswith(prefix))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self._roots[prefix] / path.removeprefix(prefix), flags)
        except OSError:
            return False
        try:
            return being_written(fd) is False and _signature(os.fstat(fd)) == signature
        finally:
            os.close(fd)

    def _scan(self) -> Iterator[tuple[str, Signature]]:
        left = _MOST_ENTRIES
        pending = [(root, prefix, 0) for prefix, root in self._roots.items()]
        while pending:
            folder, prefix, depth = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:  # gone meanwhile
                continue
            for entry in entries:
                left -= 1
                if left < 0:
                    return
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MOST_DEPTH and not entry.name.startswith((".", "__pycache__")):
                        pending.append((folder / entry.name, f"{prefix}{entry.name}/", depth + 1))
                elif (signature := self._written_since(entry)) is not None and len(prefix) < _LONGEST_PATH:
                    yield prefix + entry.name, signature

    def _written_since(self, entry: os.DirEntry[str]) -> Signature | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        is_new = stat.S_ISREG(status.st_mode) and status.st_ctime_ns >= self._began_ns
        return _signature(status) if is_new else None


def read_finished_files(folder: AttemptFolder) -> dict[str, Signature]:
    """The files that an attempt's supervisor saw finished, by their paths relative to the job's folder.

    None after a restart of the machine: what was written may not have reached the disk.
    """
    files = (read_record(folder.finished_files) or {}).get("files")
    boot = (read_record(folder.supervisor) or {}).get("boot_id")
    if boot != boot_id() or not isinstance(files, dict):
        return {}
    return {
        path: (row[0], row[1], row[2], row[3])
        for path, row in files.items()
        if isinstance(row, list) and len(row) == 4 and all(isinstance(each, int) for each in row)
    }


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _write(path: Path, vouched: Mapping[str, Signature]) -> None:
    """Whole or absent for readers, but not synced: after a power cut the files themselves are in doubt."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps({"v": VERSION, "files": vouched}, separators=(",", ":")), encoding="ascii")
    part.replace(path)
