"""System calls that Python does not offer, and leases."""

import ctypes
import errno
import fcntl
import os
import signal
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02

_ARGUMENTS_BEGIN = 48 - 3  # field 48 of /proc/<pid>/stat, among those behind the name

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send ``signal_number`` to this process when the thread that forked it ends; survives exec."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def punch_hole(fd: int, start: int, length: int) -> None:
    """Free the blocks of this byte range.  Size and offsets stay; the range reads as zeros.

    Raises:
        OSError: EOPNOTSUPP if the file system has no holes.
    """
    if _libc.fallocate(fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, start, length) != 0:
        _raise("fallocate")


def show_as(command: Sequence[str]) -> None:
    """Let lists of processes show this one as ``command``, cut to the bytes of its own command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_BEGIN + 1])
    room = end - begin - 2
    if room > 0:
        # A last byte that is not zero tells the kernel that a title ends at the first zero.
        title = os.fsencode(" ".join(command))[:room]
        ctypes.memmove(begin, title.ljust(room + 1, b"\0") + b".", room + 2)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        _raise("prctl")


def _raise(call: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")


def being_written(fd: int) -> bool | None:
    """Whether any process has the file of this read-only descriptor open for writing; None if unknown.

    Takes a read lease and drops it at once: the kernel refuses a lease while a writer has the file open.
    """
    # A writer that opens the file right now breaks the lease with a signal, whose default would end this process.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:  # broken already
            return True
        raise
    return False
