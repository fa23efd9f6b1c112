"""Opens, walks and removes files and folders that a job controls.

Links are never followed, and a named pipe never blocks the reader.  Folders are walked and removed without recursion: before
Python 3.12 ``os.walk`` and ``shutil.rmtree`` call themselves for each level, and end in RecursionError.
"""

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from orchestrator.exceptions import NotFound

DEEPEST = 32  # of the paths that people may name


def open_plain(path: str | Path, *, folder: int | None = None) -> int:
    """Open a regular file for reading.  Refuses a link as the last part of the path; never waits for a pipe.

    Args:
        folder: a descriptor that ``path`` is relative to.

    Raises:
        OSError: missing, a link (ELOOP), or not a regular file (EINVAL).
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def open_beneath(root: Path, relative: str) -> int:
    """Open a regular file for reading without following a link in any part of its path.

    Raises:
        OSError: missing, not a regular file (EINVAL), or with a link in its path (ELOOP, ENOTDIR).
    """
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), relative)
    folder = open_folder_beneath(root, parts[:-1])
    try:
        return open_plain(parts[-1], folder=folder)
    finally:
        os.close(folder)


def open_named(root: Path, path: str) -> BinaryIO:
    """Open a regular file under ``root`` that a person named, without following any link.

    Raises:
        NotFound: nothing is there, or it is a link or not a regular file.
    """
    parts = path.split("/")
    missing = NotFound(f"There is no file {path[:200]!r}.")
    if not all(parts) or any(part in {".", ".."} for part in parts) or "\0" in path or len(parts) > DEEPEST:
        raise missing
    try:
        return os.fdopen(open_beneath(root, path), "rb")
    except OSError as error:
        raise missing from error


def open_folder_beneath(root: Path, parts: tuple[str, ...], *, make: bool = False) -> int:
    """Open a folder below ``root`` part by part without following links; ``make`` creates missing parts."""
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


def walk_tree(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as ``os.walk`` does, from the top down; links to folders count as files.

    Folders that cannot be listed (gone, or with a path too long for the kernel) are left out.
    """
    pending = [str(top)]
    while pending:
        here = pending.pop()
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        except OSError:
            continue
        yield here, folders, files
        pending += [f"{here}/{name}" for name in folders]


def remove_tree(top: Path) -> None:
    """Remove a folder and its contents.  Does nothing where it is missing; does not follow links.

    Grandchildren are moved up before their parent is removed, so that no path gets too long.
    """
    if top.is_symlink() or not top.is_dir():
        return
    names = (top / f".{secrets.token_hex(8)}.{number}" for number in itertools.count())
    moved = True
    while moved:
        moved = False
        for folder in _clear(top):
            for inner in _clear(folder):
                with suppress(OSError):
                    inner.rename(next(names))
                    moved = True
            with suppress(OSError):
                folder.rmdir()
    with suppress(OSError):
        top.rmdir()


def _clear(folder: Path) -> list[Path]:
    """Remove the files in a folder; returns its subfolders."""
    folders = []
    with suppress(OSError):
        folder.chmod(0o700)  # its owner may have removed the permission
        with os.scandir(folder) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108  # a Path for each of a million files costs seconds
    return folders
