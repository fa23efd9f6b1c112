"""A folder that has a copy on another server: what differs, and how one becomes the other.

Links are never followed on either side, since a job may have made them.  A file is replaced as a whole and keeps its
time, so an equal size and time mean equal contents; what only grows is appended to instead.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from orchestrator.store.files.durable import write_all
from orchestrator.store.files.untrusted import open_beneath, open_folder_beneath, remove_tree, walk_tree
from orchestrator.supervisor.linux.kernel import being_written

PART = ".berth-part-"  # begins the name of a file that has not arrived as a whole
_FILE_MODES, _FOLDER_MODE = 0o777, 0o755


class Entry(NamedTuple):
    """A file, folder or link, as one side sees it."""

    kind: str  # file, folder, link
    size_bytes: int = 0
    written_ns: int = 0
    mode: int = 0
    target: str = ""  # of a link
    signature: tuple[int, int, int, int] = (0, 0, 0, 0)  # inode, size, mtime, ctime; on that side alone

    def equals(self, other: "Entry | None") -> bool:
        """Whether the other side has the same."""
        if other is None or self.kind != other.kind:
            return False
        if self.kind == "file":
            return self[1:4] == other[1:4]
        return self.target == other.target


class Chunk(NamedTuple):
    """A part of a file."""

    path: str
    entry: Entry  # of the whole file, before and after the reading
    offset: int
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.offset + len(self.data) >= self.entry.size_bytes


def list_tree(root: Path, folders: Sequence[str]) -> dict[str, Entry]:
    """Everything below some folders of ``root``, by its path from ``root``; a folder stands before what is in it."""
    entries: dict[str, Entry] = {}
    for top in folders:
        if (entry := entry_at(root / top)) is None or entry.kind != "folder":
            continue
        entries[top] = entry
        for here, below, files in walk_tree(root / top):
            for name in (*below, *files):
                if name.startswith(PART):
                    continue
                path = Path(here) / name
                if (entry := entry_at(path)) is not None:
                    entries[str(path.relative_to(root))] = entry
    return entries


def entry_at(path: Path) -> Entry | None:
    """What is at a path; None for nothing, and for sockets, pipes and devices, which are not copied."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return Entry("link", target=str(path.readlink()))
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return Entry("folder")
    return _file_entry(status) if stat.S_ISREG(status.st_mode) else None


def _file_entry(status: os.stat_result) -> Entry:
    signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return Entry("file", status.st_size, status.st_mtime_ns, status.st_mode & _FILE_MODES, "", signature)


def read_chunk(root: Path, path: str, offset: int, limit_bytes: int, *, closed: bool = False) -> Chunk | None:
    """Read a part of a file; None if it is gone or no file, or changes right now.

    Args:
        closed: leave out a file that a process has open for writing.
    """
    try:
        fd = open_beneath(root, path)
    except OSError:
        return None
    try:
        before = os.fstat(fd)
        if closed and being_written(fd) is not False:
            return None
        data = os.pread(fd, max(0, min(limit_bytes, before.st_size - offset)), offset)
        return Chunk(path, _file_entry(before), offset, data)
    finally:
        os.close(fd)


class Arrivals:
    """Files that come in parts from the other side into ``root``; each appears when it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def take(self, chunk: Chunk) -> bool:
        """Write one part; True once the file is whole and in its place.

        Parts of one file come in order; the first begins it again.

        Raises:
            OSError: no room, a part is missing (ESTALE), or something stands where a folder has to be.
        """
        with _parent(self.root, chunk.path) as (folder, name):
            part = f"{PART}{name}"[:255]
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(part, flags | (os.O_TRUNC if chunk.offset == 0 else 0), 0o600, dir_fd=folder)
            try:
                if os.fstat(fd).st_size != chunk.offset:
                    raise OSError(errno.ESTALE, "a part of the file is missing", chunk.path)
                os.lseek(fd, chunk.offset, os.SEEK_SET)
                write_all(fd, chunk.data)
                if not chunk.is_last:
                    return False
                os.fchmod(fd, chunk.entry.mode)
                os.utime(fd, ns=(chunk.entry.written_ns, chunk.entry.written_ns))
            finally:
                os.close(fd)
            _clear(folder, name)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True

    def append(self, chunk: Chunk) -> None:
        """Add to a file that only grows; what is there already stays.

        Raises:
            OSError: no room, or a part is missing (ESTALE).
        """
        with _parent(self.root, chunk.path) as (folder, name):
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
            try:
                size_bytes = os.fstat(fd).st_size
                if size_bytes < chunk.offset:
                    raise OSError(errno.ESTALE, "a part of the file is missing", chunk.path)
                os.lseek(fd, size_bytes, os.SEEK_SET)
                write_all(fd, chunk.data[size_bytes - chunk.offset :])
            finally:
                os.close(fd)

    def make(self, entries: Mapping[str, Entry]) -> None:
        """Make the folders and links among some entries; folders stand before what is in them.

        Raises:
            OSError: the disk takes no more names.
        """
        for path, entry in entries.items():
            if entry.kind == "file":
                continue
            with _parent(self.root, path) as (folder, name):
                if entry.equals(_entry_in(folder, name)):
                    continue
                _clear(folder, name)
                if entry.kind == "folder":
                    os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
                else:
                    os.symlink(entry.target, name, dir_fd=folder)

    def remove(self, paths: Collection[str]) -> None:
        """Remove what the other side no longer has."""
        for path in sorted(paths, reverse=True):  # what is in a folder before the folder
            with suppress(OSError), _parent(self.root, path) as (folder, name):
                _clear(folder, name)


@contextmanager
def _parent(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """The folder of a path, made where it is missing and opened without following a link, and the name in it.

    Raises:
        OSError: the path leads out of ``root`` (EINVAL), or through a link or file (ELOOP, ENOTDIR).
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    folder = open_folder_beneath(root, parts[:-1], make=True)
    try:
        yield folder, parts[-1]
    finally:
        os.close(folder)


def _entry_in(folder: int, name: str) -> Entry | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return Entry("link", target=os.readlink(name, dir_fd=folder))
    except OSError:
        return None
    return Entry("folder") if stat.S_ISDIR(status.st_mode) else _file_entry(status)


def _clear(folder: int, name: str) -> None:
    """Remove whatever has a name, so that something of another kind can take it."""
    entry = _entry_in(folder, name)
    if entry is None:
        return
    if entry.kind == "folder":
        remove_tree(Path(f"/proc/self/fd/{folder}/{name}"))
    else:
        os.unlink(name, dir_fd=folder)
