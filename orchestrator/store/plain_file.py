"""Opening files that a job could have put anything in the place of."""

import errno
import os
import stat
from pathlib import Path


def open_plain(path: str | Path, *, folder: int | None = None) -> int:
    """Open a regular file for reading; a link in its last part is not followed, and a pipe keeps nobody waiting.

    Args:
        folder: a descriptor that ``path`` is relative to.

    Raises:
        OSError: it is missing, a link (ELOOP) or no regular file (EINVAL).
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return fd
