"""Unpacks a fetched archive; nothing of Django, for the fetching program.

What an archive says of its members is not trusted: only regular files are written, links become the files that they
lead to, and nothing is written outside the folder.
"""

import bisect
import errno
import hashlib
import itertools
import lzma
import os
import posixpath
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from orchestrator.jobs.data.causes import CannotFetch

READ_BYTES = 4 * 1024**2
DEEPEST_LINKS = 40  # through one another, as in the kernel
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    ValueError,  # of names that are not UTF-8, and of sparse files
)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """One file of an archive, after it was written."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(slots=True)
class Unpacking:
    """An archive on its way into a folder."""

    target: Path
    most_bytes: int
    most_files: int
    files: dict[str, Unpacked] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)  # of files with as many names as they may have
    size_bytes: int = 0

    def take(self, archive: Path) -> list[Unpacked]:
        """Unpack a zip or tar archive; returns its files, by their paths.

        Raises:
            CannotFetch: it is no archive, is damaged or encrypted, leads out of its folder, or is too large.
        """
        try:
            if zipfile.is_zipfile(archive):
                self._take_zip(archive)
            elif tarfile.is_tarfile(archive):
                self._take_tar(archive)
            else:
                raise _refused(f"{archive.name} is neither a zip nor a tar archive")
        except _BROKEN as error:
            raise _refused(f"{archive.name} is damaged ({error})") from None
        except RuntimeError:  # as zipfile says that a password is needed
            raise _refused(f"{archive.name} is encrypted") from None
        self._follow_links()
        if not self.files:
            raise _refused(f"{archive.name} has no files")
        return [self.files[path] for path in sorted(self.files)]

    def _take_zip(self, archive: Path) -> None:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                path = _path_of(member.filename)
                if path is None or member.is_dir():
                    continue
                with opened.open(member) as content:
                    if _is_link(member):
                        self._note_link(path, content.read(4096).decode(errors="replace"))
                    else:
                        self._write(path, content)

    def _take_tar(self, archive: Path) -> None:
        with tarfile.open(archive) as opened:
            for member in opened:
                path = _path_of(member.name)
                if path is None or member.isdir():
                    continue
                if member.issym():
                    self._note_link(path, member.linkname)
                elif member.islnk():  # names its target from the archive's top
                    self._note_link(path, posixpath.relpath(member.linkname, posixpath.dirname(path) or "."))
                elif member.isfile() and (content := opened.extractfile(member)) is not None:
                    with content:
                        self._write(path, content)
                else:
                    raise _refused(f"it has a device or pipe: {path[:100]!r}")

    def _note_link(self, path: str, target: str) -> None:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if target.startswith("/") or place.startswith("../") or place == "..":
            raise _refused(f"its link {path[:100]!r} leads out of it")
        if path not in self.links:
            self._check_count(len(self.links))
        self.links[path] = place

    def _write(self, path: str, content: IO[bytes]) -> None:
        if path in self.files:  # a later member of the name wins
            self.size_bytes -= self.files[path].size_bytes
        else:
            self._check_count()
        digest, size_bytes = hashlib.sha256(), 0
        with _new_file(self.target / path) as file:
            while chunk := content.read(READ_BYTES):
                size_bytes += len(chunk)
                self._check_room(size_bytes)
                file.write(chunk)
                digest.update(chunk)
        self.size_bytes += size_bytes
        self.files[path] = Unpacked(path, size_bytes, digest.hexdigest())

    def _follow_links(self) -> None:
        """Put hard links where the archive has links to its files or folders; a link to nothing is left out."""
        pending = self._ends_of_links()
        # A link may lead through another one, which is there after it was followed.
        for _ in range(DEEPEST_LINKS):
            shown = self._shown(pending)
            if not any(shown.values()):
                break
            for source, place in (pair for pairs in shown.values() for pair in pairs):
                self._link(source, place)
            pending = {path: target for path, target in pending.items() if not shown[path]}

    def _shown(self, pending: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
        """The files that each link shows now; links to one folder must not fill the memory with them."""
        names, shown = sorted(self.files), {}
        room = self.most_files - len(self.files)
        for path, target in pending.items():
            shown[path] = list(itertools.islice(self._places(names, target, path), room + 1))
            room -= len(shown[path])
            if room < 0:
                raise self._too_many()
        return shown

    def _link(self, source: str, place: str) -> None:
        if place in self.files:
            return
        self._check_count()
        (self.target / place).parent.mkdir(parents=True, exist_ok=True)
        found = self.files[source]
        origin = self.target / self.copies.get(source, source)
        try:
            os.link(origin, self.target / place)
        except OSError as error:
            if error.errno != errno.EMLINK:  # ext4 gives a file 65,000 names; then another copy of it goes on
                raise
            self._check_room(found.size_bytes)
            shutil.copyfile(origin, self.target / place)
            self.size_bytes += found.size_bytes
            self.copies[source] = place
        self.files[place] = Unpacked(place, found.size_bytes, found.sha256)

    def _check_room(self, more_bytes: int) -> None:
        if self.size_bytes + more_bytes > self.most_bytes:
            words = f"Unpacked it has more than the {self.most_bytes:,} bytes that there is room for."
            raise CannotFetch("quota", words)

    def _check_count(self, more: int = 0) -> None:
        if len(self.files) + more >= self.most_files:
            raise self._too_many()

    def _too_many(self) -> CannotFetch:
        return CannotFetch("quota", f"It has more than the {self.most_files:,} files that are unpacked.")

    def _places(self, names: list[str], target: str, path: str) -> Iterator[tuple[str, str]]:
        """The files that a link shows, and where it shows them.

        Args:
            names: of all files, sorted: those of a folder stand together.
        """
        if target in self.files:
            if path not in self.files:
                yield target, path
            return
        folder = f"{target}/"
        if path.startswith(folder):
            return
        for source in itertools.islice(names, bisect.bisect_left(names, folder), None):
            if not source.startswith(folder):
                break
            place = f"{path}{source.removeprefix(target)}"
            if place not in self.files:
                yield source, place

    def _ends_of_links(self) -> dict[str, str]:
        """Where the chain of each link ends; a circle ends anywhere.  Each link is passed once, however long the chains."""
        ends: dict[str, str] = {}
        for link in self.links:
            chain, place = [], link
            passed: set[str] = set()
            while place in self.links and place not in ends and place not in passed:
                chain.append(place)
                passed.add(place)
                place = self.links[place]
            end = ends.get(place, place)
            ends |= dict.fromkeys(chain, end)
        return ends


@contextmanager
def _new_file(place: Path) -> Iterator[IO[bytes]]:
    """A new file; one of the same name is replaced, so that no other name of its content changes."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        file = place.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError):
        raise _refused(f"it has a file and a folder of one name: {place.name[:100]!r}") from None
    with file:
        yield file


def _path_of(name: str) -> str | None:
    """A member's path below the archive's folder; None for the folder itself.

    Raises:
        CannotFetch: it leads out of the folder.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if ".." in parts or name.startswith(("/", "\\")) or "\0" in name or ":" in (parts or ("",))[0][1:2]:
        raise _refused(f"it has a file that leads out of it: {name[:100]!r}")
    return "/".join(parts) or None


def _is_link(member: zipfile.ZipInfo) -> bool:
    return (member.external_attr >> 16) & 0o170000 == 0o120000


def _refused(problem: str) -> CannotFetch:
    return CannotFetch("archive", f"The archive cannot be unpacked: {problem}.")
