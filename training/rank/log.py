"""The log of a rank, in which the script's output stays whole as long as the disk has room.  Standard library only."""

# No pathlib: importing it would double the time to the script's first line.

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import _thread
import errno
import io
import os
import sys

from . import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


def redirect_to(path: str) -> None:
    """Send what this process prints to the log; called before anything else, so that all later errors are in it."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _PatientLog.losses = _LossCount(path[: -len("log")] + "lost")
    sys.stdout = _patient(sys.stdout, 1)
    sys.stderr = _patient(sys.stderr, 2)


def write_losses() -> None:
    """Add losses that the file of the losses does not have yet, at the end of the rank."""
    if _PatientLog.losses is not None:
        _PatientLog.losses.add(0)


class _PatientLog(io.FileIO):
    """A log that drops lines while the disk is full, so that a ``print`` does not end the training."""

    lost_bytes = 0  # not yet mentioned in the log
    losses: _LossCount | None = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        size, done = view.nbytes, 0
        try:
            if self.lost_bytes:
                super().write(b"\n[berth: %d bytes were not logged, the disk was full]\n" % self.lost_bytes)
                self.lost_bytes = 0
            # On the last free block of a disk, only a part is written.
            while done < size and (written := super().write(view[done:])):
                done += written
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.lost_bytes += size - done
            if self.losses is not None:
                self.losses.add(size - done)
            return size
        return done


class _LossCount:
    """Counts the bytes that a rank could not log, in a file allocated before the disk was full.

    The log itself cannot mention them if the run ends, or is killed, while the disk is full.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._new_bytes = 0  # not in the file yet
        self._lock = _thread.RLock()
        os.register_at_fork(after_in_child=self._begin_in_child)
        self._change(os.O_CREAT)

    def add(self, lost_bytes: int) -> None:
        with self._lock:
            self._new_bytes += lost_bytes
            if self._new_bytes:
                self._change()

    def _begin_in_child(self) -> None:
        self._lock = _thread.RLock()
        self._new_bytes = 0

    def _change(self, flags: int = 0) -> None:
        """Add new bytes to the file; after a failure the next loss, or the end, retries."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
        except OSError:
            return
        try:
            os.lockf(fd, os.F_TLOCK, 0)  # forked children log as well; never wait
            total = int(os.pread(fd, 20, 0) or b"0") + self._new_bytes
            os.pwrite(fd, b"%020d\n" % total, 0)
        except (OSError, ValueError):
            return
        else:
            self._new_bytes = 0
        finally:
            os.close(fd)


def _patient(stream: Any, descriptor: int) -> io.TextIOWrapper:
    """Wrap the descriptor like ``python -u`` does, over a patient log."""
    log = _PatientLog(descriptor, "wb", closefd=False)
    log.name = stream.name
    return io.TextIOWrapper(log, stream.encoding, stream.errors, "\n", write_through=True)
