"""Whether a file is being written, and whether it was written whole; nothing in it is ever unpickled."""

import errno
import fcntl
import os
import signal
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from orchestrator.exceptions import OrchestratorError
from orchestrator.store.archives import count_zip_members
from orchestrator.store.plain_file import open_plain

MOST_MEMBERS = 200_000
BROKEN_ZIP = (
    OrchestratorError,
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    struct.error,
)
ZIP_HEAD = b"PK\x03\x04"
# Kernels before 6.13 stamp files with a clock of up to 10 ms: two writes within it look like one.
CLOCK_TICK_S = 0.05


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


def open_beneath(root: Path, relative: str) -> int:
    """Open a regular file for reading; no link is followed in any part of its path.

    Raises:
        OSError: missing, or a link on the way (ELOOP, ENOTDIR), or not a regular file (EINVAL).
    """
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), relative)
    folder = open_folder_beneath(root, parts[:-1])
    try:
        return open_plain(parts[-1], folder=folder)
    finally:
        os.close(folder)


def open_folder_beneath(root: Path, parts: tuple[str, ...], *, make: bool = False) -> int:
    """Open a folder below ``root`` part by part without following links; missing ones may be made."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            if make:
                _make_folder(part, fd)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _make_folder(name: str, folder: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        return
    os.fsync(folder)


def looks_like_zip(fd: int) -> bool:
    """Whether a file begins as a zip does (what ``torch.save`` writes)."""
    return os.pread(fd, 4, 0) == ZIP_HEAD


def zip_is_whole(fd: int) -> bool:
    """Whether a zip's directory can be read; it is written last, so a file that was cut short has none."""
    return _members(fd) is not None


def zip_has_its_checksums(fd: int) -> bool:
    """Whether the checksum of every member proves its bytes; False also where that cannot be told.

    Overwriting in place without cutting can leave the old directory at the end of torn contents.  Only
    members that are stored are read, as ``torch.save`` writes them: others could unpack without end.
    """
    infos = _members(fd)
    if not infos or any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        return False
    if sum(info.file_size for info in infos) > os.fstat(fd).st_size:
        return False
    with os.fdopen(os.dup(fd), "rb") as file:
        try:
            with zipfile.ZipFile(file) as opened:
                return opened.testzip() is None
        except (*BROKEN_ZIP, RuntimeError):  # RuntimeError: encrypted
            return False


def _members(fd: int) -> list[zipfile.ZipInfo] | None:
    """The members of a zip file; None where it has no sound directory, or an endless one."""
    with os.fdopen(os.dup(fd), "rb") as file:
        try:
            count_zip_members(file, MOST_MEMBERS)
            with zipfile.ZipFile(file) as opened:
                return opened.infolist() or None
        except BROKEN_ZIP:
            return None
