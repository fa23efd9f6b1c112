"""Lays the layers of an image over one another, in a folder of a user who is not root of anything.

Nothing of a layer leads out of the folder: links are resolved inside of it, and hard links, devices and modes are taken
for what such a user may have.  See https://github.com/opencontainers/image-spec/blob/main/layer.md.
"""

import os
import shutil
import stat
import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, cast

from orchestrator.store.files.untrusted import remove_tree
from orchestrator.supervisor.sandbox.image import resolve

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

MOST_FILES = 2_000_000
READ_BYTES = 1024**2
_HIDES = ".wh."  # a file of this name hides what it names in the layers below
_HIDES_ALL = ".wh..wh..opq"
_OWN_FILE, _OWN_FOLDER = 0o600, 0o700
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))  # RFC 8878


class CannotGet(Exception):
    """An image cannot be had: a cause to decide by, and words for people."""

    def __init__(self, cause: str, words: str) -> None:
        super().__init__(words)
        self.cause = cause


def starts_as_zstd(file: BufferedReader) -> bool:
    return file.peek(4)[:4] in _ZSTD


def without_zstd(file: BufferedReader) -> IO[bytes]:
    """What is packed with zstd, which tarfile reads from Python 3.14 on; other files as they are."""
    return cast("IO[bytes]", zstd.ZstdFile(file) if starts_as_zstd(file) else file)


@dataclass(slots=True)
class Room:
    """How much an image may still take."""

    most_bytes: int
    bytes: int = 0
    files: int = 0

    def take(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        self.files += 1
        if self.bytes > self.most_bytes or self.files > MOST_FILES:
            raise CannotGet(
                "size",
                f"It has more than {self.most_bytes / 1024**3:,.0f} GiB or {MOST_FILES:,} files when it is unpacked.",
            )


@dataclass(slots=True)
class Rootfs:
    """The folder that layers are laid into, the lowest first."""

    root: Path
    room: Room
    _laid: set[Path] = field(default_factory=set)  # by the layer at work

    def lay(self, layer: IO[bytes]) -> None:
        """Lay one layer, packed or not, over those that are there.

        Raises:
            CannotGet: it is no layer, or too large.
            OSError: it cannot be written.
        """
        self._laid = set()
        try:
            with tarfile.open(fileobj=layer, mode="r|*") as archive:
                for member in archive:
                    self._lay(archive, member)
                    archive.members = []  # type: ignore[attr-defined]  # a list of all would take gigabytes
        except (tarfile.TarError, EOFError, zstd.ZstdError) as error:
            raise CannotGet("format", f"A layer cannot be unpacked ({error}).") from None
        except NotADirectoryError as error:
            place = os.path.relpath(error.filename or self.root, self.root)
            raise CannotGet(
                "format", f"A layer has files below {place[:80]!r}, which is none of its folders."
            ) from None

    def _lay(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = PurePosixPath("/", member.name)
        if ".." in name.parts or "\0" in member.name:
            raise CannotGet("format", f"A layer has a file {member.name[:80]!r}, which leads out of it.")
        if str(name) == "/":
            return
        folder = self._folder(str(name.parent))
        if name.name == _HIDES_ALL:
            self._hide_all(folder)
        elif name.name.startswith(_HIDES):
            hidden = name.name.removeprefix(_HIDES)
            if hidden not in ("", ".", ".."):
                _remove(folder / hidden)
        else:
            self.room.take(member.size if member.isreg() else 0)
            self._write(archive, member, folder / name.name)

    def _folder(self, path: str) -> Path:
        """The folder that a path leads to inside of the image, made if it is not there."""
        place = resolve(self.root, path)
        with suppress(FileExistsError):
            place.mkdir(parents=True)
        if not place.is_dir():
            raise CannotGet("format", f"A layer has files below {path[:80]!r}, which is none of its folders.")
        return place

    def _hide_all(self, folder: Path) -> None:
        for entry in list(os.scandir(folder)):
            if Path(entry.path) not in self._laid:
                _remove(Path(entry.path))

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
        self._laid.update((place, *place.parents))
        is_folder = place.is_dir() and not place.is_symlink()
        if member.isdir():
            if not is_folder:
                _remove(place)
                place.mkdir()
            place.chmod(_mode(member, _OWN_FOLDER))
            return
        if member.islnk():
            source = self._linked(member.linkname)
            if source == place:
                return
            _remove(place)
            os.link(source, place, follow_symlinks=False)
            return
        _remove(place)
        if member.issym():
            place.symlink_to(member.linkname)
        elif member.isreg():
            self._copy(archive.extractfile(member), place)
            place.chmod(_mode(member, _OWN_FILE))
        # Devices, pipes and sockets are the host's to give.

    def _linked(self, name: str) -> Path:
        path = PurePosixPath("/", name)
        source = resolve(self.root, str(path.parent)) / path.name
        if ".." in path.parts or not (source.is_symlink() or source.is_file()):
            raise CannotGet(
                "format", f"A layer has a hard link to {name[:80]!r}, which is no file of the image."
            )
        return source

    def _copy(self, content: IO[bytes] | None, place: Path) -> None:
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _OWN_FILE)
        with os.fdopen(fd, "wb") as file:
            if content is not None:
                shutil.copyfileobj(content, file, READ_BYTES)


def _mode(member: tarfile.TarInfo, at_least: int) -> int:
    """The rights of a file, without setuid and setgid: whoever runs it owns it."""
    return (member.mode & 0o777) | at_least


def _remove(place: Path) -> None:
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        remove_tree(place)
    else:
        place.unlink()
