"""Limits the disk space of an attempt; counts more often while the disk fills."""

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact

_EACH_S = 5.0
_AT_LEAST_EACH_S = 60.0
_FULL_BELOW_BYTES = 1 << 20


class DiskWatch:
    """Enforces one limit for several folders and files together."""

    def __init__(self, folders: Sequence[Path], limit_bytes: int | None, now_s: float) -> None:
        self._folders = folders
        self._limit_bytes = limit_bytes
        self._next_look_s = now_s + _EACH_S
        self._counted_s = float("-inf")
        self._free_then_bytes = 0
        self._used_bytes = 0

    def check(self, now_s: float) -> Fact | None:
        """The disk space used, if the attempt exceeds its limit."""
        if self._limit_bytes is None or now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + _EACH_S
        if self._must_count(now_s):
            self._used_bytes = sum(_size_bytes(folder) for folder in self._folders)
            self._counted_s, self._free_then_bytes = now_s, _free_bytes(self._folders)
        if self._used_bytes <= self._limit_bytes:
            return None
        return fact(Ended.OVER_DISK, used_bytes=self._used_bytes, limit_bytes=self._limit_bytes)

    def _must_count(self, now_s: float) -> bool:
        """Whether to count again: walking a million files takes seconds, so wait until the disk lost enough space."""
        if now_s - self._counted_s >= _AT_LEAST_EACH_S:
            return True
        assert self._limit_bytes is not None  # noqa: S101 -- check() returns before this
        lost_bytes = self._free_then_bytes - _free_bytes(self._folders)
        return lost_bytes > max(0, self._limit_bytes - self._used_bytes) // 2


def is_full(folder: Path) -> bool:
    """Whether a file system has too little space or no inodes left to write on."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_BELOW_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def _free_bytes(folders: Iterable[Path]) -> int:
    free = []
    for folder in folders:
        try:
            disk = os.statvfs(folder)
        except OSError:
            continue
        free.append(disk.f_bavail * disk.f_frsize)
    return min(free, default=0)


def _size_bytes(place: Path) -> int:
    """Disk space of a file, or of all files below a folder.  Follows no links; ignores vanished files."""
    try:
        status = place.lstat()
    except OSError:
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_blocks * 512
    total = 0
    pending = [str(place)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total
