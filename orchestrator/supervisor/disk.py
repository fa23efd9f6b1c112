"""How much an attempt has written: looked at often where the disk fills, seldom where it does not."""

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

_EACH_S = 5.0
_AT_LEAST_EACH_S = 60.0
_LITTLE_BYTES = 1 << 20


class DiskWatch:
    """Holds some folders and files to a limit, all together."""

    def __init__(self, folders: Sequence[Path], limit_bytes: int | None, now_s: float) -> None:
        self._folders = folders
        self._limit_bytes = limit_bytes
        self._next_look_s = now_s + _EACH_S
        self._counted_s = float("-inf")
        self._free_then_bytes = 0
        self._used_bytes = 0

    def check(self, now_s: float) -> str | None:
        """A sentence if the attempt is over its limit."""
        if self._limit_bytes is None or now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + _EACH_S
        if self._must_count(now_s):
            self._used_bytes = sum(_size_bytes(folder) for folder in self._folders)
            self._counted_s, self._free_then_bytes = now_s, _free_bytes(self._folders)
        if self._used_bytes <= self._limit_bytes:
            return None
        return (
            f"The run filled {self._used_bytes / 2**30:.1f} GiB of disk, more than its limit of "
            f"{self._limit_bytes / 2**30:.1f} GiB. Keep fewer checkpoints and outputs, or ask for a higher limit."
        )

    def _must_count(self, now_s: float) -> bool:
        """Walking a million files takes seconds: needed only once the disk lost what is left of the limit."""
        if now_s - self._counted_s >= _AT_LEAST_EACH_S:
            return True
        assert self._limit_bytes is not None  # noqa: S101 -- check() returns before this
        lost_bytes = self._free_then_bytes - _free_bytes(self._folders)
        return lost_bytes > max(0, self._limit_bytes - self._used_bytes) // 2


def is_full(folder: Path) -> bool:
    """Whether a file system has no room left that is worth writing into, or no file can be made on it (F53)."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LITTLE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


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
    """Blocks in use by a file, or below a folder; links are not followed (B58), what vanishes meanwhile counts nothing."""
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
