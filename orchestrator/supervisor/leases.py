"""Whether any process has a file open for writing."""

import errno
import fcntl
import signal


def being_written(fd: int) -> bool | None:
    """Whether any process has the file of this read-only descriptor open for writing; None where nobody can tell.

    Takes a read lease and drops it at once: the kernel refuses it beside a writer.
    """
    # A writer that opens right now breaks the lease with a signal, which would end this process by default.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:  # broken and gone already
            return True
        raise
    return False
