"""Writes files and folders that are whole or absent after a power cut."""

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

FICLONE = 0x40049409  # linux/fs.h; the fcntl module has no name for it
FEW_FILES = 64  # up to this count one fsync a file is faster than a sync of the whole file system
COPY_BYTES = 1 << 20
_ZEROS = bytes(COPY_BYTES)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; POSIX stores a rename in the folder, not in the file."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: Path, files: Sequence[Path]) -> None:
    """Make the given files and every folder from ``folder`` down to them durable."""
    if len(files) > FEW_FILES:
        os.sync()
        return
    for path in files:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    parents = {folder}
    for path in files:
        parents.update(parent for parent in path.parents if parent.is_relative_to(folder))
    for parent in parents:
        sync_folder(parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash it is the old one or the new one."""
    part = path.with_name(f".{path.name}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    part.replace(path)
    sync_folder(path.parent)


def append_behind(path: Path, whole_bytes: int, data: bytes) -> None:
    """Append after the first ``whole_bytes``; cuts off what a crash left behind them."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, whole_bytes)
        os.lseek(fd, 0, os.SEEK_END)
        write_all(fd, data)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything; one call of the kernel may write only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_sparsely(fd: int, data: bytes) -> None:
    """Write at the current position; a block of zeros takes no room on the disk.

    A job's file may be a terabyte of holes: its copy must not take a terabyte.
    """
    if data == _ZEROS[: len(data)]:
        os.ftruncate(fd, os.lseek(fd, len(data), os.SEEK_CUR))
    else:
        write_all(fd, data)


def clone(source_fd: int, target_fd: int) -> bool:
    """Share the blocks of a whole file (reflink); False where the file system cannot."""
    try:
        fcntl.ioctl(target_fd, FICLONE, source_fd)
    except OSError as error:
        unable = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EPERM)
        if error.errno in unable:
            return False
        raise
    return True


def copy_bytes(source_fd: int, target_fd: int) -> None:
    """Copy a whole file to the end of another, as a reflink where possible."""
    if clone(source_fd, target_fd):
        return
    offset = 0
    while chunk := os.pread(source_fd, COPY_BYTES, offset):
        write_all(target_fd, chunk)
        offset += len(chunk)


def read_or_create(path: Path, make: Callable[[], str]) -> str:
    """The text of a private key file, created at first use.  Of several processes at once, one creates it.

    Raises:
        OSError: the file can be neither read nor created.
    """
    try:
        return path.read_text()
    except FileNotFoundError:
        pass
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    part.touch(mode=0o600)
    part.write_text(make())
    try:
        path.hardlink_to(part)  # unlike a rename, a link does not replace the key of a faster process
    except FileExistsError:
        pass
    finally:
        part.unlink()
    return path.read_text()
