"""Records which files the ranks finished writing, while they live.

A killed process closes its files too, so afterwards finished and torn files look alike.  The agent may be down at that
moment; the supervisor lives as long as the run.
"""

import heapq
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.supervisor.linux.kernel import being_written
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import VERSION, Record, read_record

SETTLE_S = 2.0  # for which writers must live on after the last write
MOST_FILES = 2_000  # the newest
_MOST_ENTRIES = 20_000
_MOST_DEPTH = 16
_LONGEST_PATH = 1_000
_CLOCK_TICK_NS = 50_000_000  # the kernel's clock for files may lag
_PAUSE_S = 1.0
_PAUSE_PER_COST = 50  # at most 2 % of a core, for any number of files

Signature = tuple[int, int, int, int]  # inode, size, mtime, ctime


class FinishedFiles:
    """Vouches for files below some folders that were written since the attempt started."""

    def __init__(self, folder: AttemptFolder, roots: Mapping[str, Path]) -> None:
        """``roots``: folders by the prefix of their paths in the record, such as ``work/``."""
        self._folder = folder
        self._roots = roots
        self._began_ns = time.time_ns() - _CLOCK_TICK_NS
        self._first_seen: dict[str, tuple[Signature, float]] = {}  # monotonic
        self._vouched: dict[str, Signature] = {}
        self._looked_s = time.monotonic()
        self._next_look_s = 0.0

    def look(self, now_s: float) -> None:
        """Record finished files; call about once a second, and only while all ranks live.

        Raises:
            OSError: the record cannot be written.
        """
        if now_s < self._next_look_s:
            return
        began_s = time.monotonic()
        files = dict(heapq.nlargest(MOST_FILES, self._scan(), key=lambda item: item[1][3]))
        gap_s = now_s - self._looked_s
        self._first_seen = {
            path: self._since(path, signature, now_s, gap_s) for path, signature in files.items()
        }
        self._looked_s = now_s
        vouched = {path: files[path] for path in files if self._is_finished(path, now_s)}
        if vouched != self._vouched:
            write_finished_files(self._folder.finished_files, vouched)
            self._vouched = vouched
        self._next_look_s = now_s + max(_PAUSE_S, _PAUSE_PER_COST * (time.monotonic() - began_s))

    def _since(self, path: str, signature: Signature, now_s: float, gap_s: float) -> tuple[Signature, float]:
        """Since when a file is unchanged: never before the previous look, whatever the clock says."""
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
        budget = _MOST_ENTRIES
        pending = [(root, prefix, 0) for prefix, root in self._roots.items()]
        while pending:
            folder, prefix, depth = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:  # removed just now
                continue
            for entry in entries:
                budget -= 1
                if budget < 0:
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
    """The files that an attempt's supervisor saw finished, by paths relative to the job's folder.

    Empty after a reboot: their contents may not have reached the disk.  Of a run over several servers, those of all.
    """
    parts = folder.parts.iterdir() if folder.parts.is_dir() else ()
    finished = [_read_finished(AttemptFolder(path)) for path in parts]
    return {path: row for files in (*finished, _read_finished(folder)) for path, row in files.items()}


def _read_finished(folder: AttemptFolder) -> dict[str, Signature]:
    record = read_record(folder.finished_files) or {}
    # The copy of another server's record says itself in which boot it was made here.
    boot = record.get("boot_id") or (read_record(folder.supervisor) or {}).get("boot_id")
    return finished_files_of(record) if boot == boot_id() else {}


def finished_files_of(record: Record) -> dict[str, Signature]:
    """The files of a record; what is malformed is left out."""
    files = record.get("files")
    return {
        path: (row[0], row[1], row[2], row[3])
        for path, row in (files.items() if isinstance(files, dict) else ())
        if isinstance(row, list) and len(row) == 4 and all(isinstance(number, int) for number in row)
    }


def write_finished_files(path: Path, vouched: Mapping[str, Signature], *, boot: str | None = None) -> None:
    """Write atomically, but without fsync: after a power cut the files themselves are in doubt.

    Args:
        boot: in which the files were copied here; None where the supervisor's own boot is meant.
    """
    part = path.with_name(f".{path.name}.part")
    record = {"v": VERSION, **({"boot_id": boot} if boot else {}), "files": vouched}
    part.write_text(json.dumps(record, separators=(",", ":")), encoding="ascii")
    part.replace(path)


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
