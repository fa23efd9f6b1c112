"""Keeps a log within its limit by taking blocks out of its middle; offsets never change.

The writer is never slowed and the reader sees the first and the last lines; what is between reads as zeros.
"""

import errno
import os
from pathlib import Path

from orchestrator.supervisor.kernel import punch_hole

_BLOCK_BYTES = 4096


class LogCap:
    """One log file with room for ``limit_bytes``: a quarter for its head, half for its tail, the rest to grow."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = max(limit_bytes, 8 * _BLOCK_BYTES)
        self._hole_start = -(-self._limit_bytes // 4 // _BLOCK_BYTES) * _BLOCK_BYTES
        self._hole_end = self._hole_start
        self._holes_supported = True

    @property
    def dropped_bytes(self) -> int:
        return self._hole_end - self._hole_start

    def enforce(self) -> None:
        """Punch the hole wider if the log is over its limit; does nothing on file systems without holes."""
        if not self._holes_supported:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # not written yet, or the run put something else in its place
            return
        try:
            self._punch(fd)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV):
                raise
            self._holes_supported = False
        finally:
            os.close(fd)

    def _punch(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size - self.dropped_bytes <= self._limit_bytes:
            return
        end = (size - self._limit_bytes // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        punch_hole(fd, self._hole_end, end - self._hole_end)
        self._hole_end = end
