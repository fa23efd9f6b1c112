"""Keeps a log within its limit by punching a hole into its middle; offsets never change.

The writer is never slowed, and readers see the first and the last lines; the hole reads as zeros.
"""

import errno
import os
from pathlib import Path

from orchestrator.supervisor.linux.kernel import punch_hole

_BLOCK_BYTES = 4096
_NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)


class LogCap:
    """One log file with room for ``limit_bytes``: a quarter for its head, half for its tail, the rest to grow.

    While the log grows fast, its tail is cut earlier and down to a quarter, to leave room until the next look.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = max(limit_bytes, 8 * _BLOCK_BYTES)
        self._hole_start = -(-self._limit_bytes // 4 // _BLOCK_BYTES) * _BLOCK_BYTES
        self._hole_end = self._hole_start
        self._cut_off_bytes = 0  # dropped before the run truncated the log itself
        self._holes_supported = True
        self._size = 0

    @property
    def dropped_bytes(self) -> int:
        return self._cut_off_bytes + self._hole_end - self._hole_start

    def enforce(self, *, at_end: bool = False) -> bool:
        """Widen the hole if the log exceeds its limit; does nothing on file systems without holes.

        Args:
            at_end: the log is complete, so needs no room to grow.

        Returns:
            Whether the log grows so fast that it must be checked again at once.
        """
        if not self._holes_supported:
            return False
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # not written yet, or replaced by the run
            return False
        try:
            return self._look(fd, at_end=at_end)
        except OSError as error:
            if error.errno not in _NO_HOLES:
                raise
            self._holes_supported = False
            return False
        finally:
            os.close(fd)

    def _look(self, fd: int, *, at_end: bool) -> bool:
        status = os.fstat(fd)
        size, grown_bytes = status.st_size, max(0, status.st_size - self._size)
        self._size = size
        if size < self._hole_end:  # the run truncated it
            self._cut_off_bytes, self._hole_end = self.dropped_bytes, self._hole_start
        reserve_bytes = 0 if at_end else min(grown_bytes, self._limit_bytes // 4)
        # A log within its limit loses nothing, however fast it grew.
        most_bytes = self._limit_bytes - (reserve_bytes if self.dropped_bytes else 0)
        if size - (self._hole_end - self._hole_start) > most_bytes:
            tail_bytes = self._limit_bytes // 2 - reserve_bytes
            self._hole_end = (size - tail_bytes) // _BLOCK_BYTES * _BLOCK_BYTES
            self._punch(fd)
        elif status.st_blocks * 512 > self._limit_bytes:
            self._punch(fd)  # the run wrote into the hole
        return grown_bytes > self._limit_bytes // 64

    def _punch(self, fd: int) -> None:
        if self._hole_end > self._hole_start:
            punch_hole(fd, self._hole_start, self._hole_end - self._hole_start)
