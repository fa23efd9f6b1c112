"""Unpack a backup into an empty folder, and nothing outside of it.

``TarFile.extractall(filter="data")`` needs Python 3.11.4 and refuses the absolute links that jobs create.
"""

import hashlib
import os
import tarfile
from pathlib import Path, PurePosixPath

from orchestrator.server.backup.sealing import SEAL, Damaged, Seal

CHUNK_BYTES = 1 << 20
JOB_DEPTH = 3  # home/jobs/<id>: links below may lead anywhere, as while the job ran
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(archive: tarfile.TarFile, folder: Path, *, sealed: bool) -> bool:
    """Write all members into ``folder`` and compare them with the seal; False for a backup without one.

    No link on the way to a member is followed, owners and special bits are not restored, and only the owner may
    write.

    Args:
        sealed: the backup announces a seal, so a missing one means damage.

    Raises:
        Damaged: a member is not what was written, or leads out of the folder.
        OSError, tarfile.TarError
    """
    unpacker = _Unpacker(folder)
    try:
        for entry in archive:
            unpacker.add(archive, entry)
        _check_end(archive)
        unpacker.finish()
    finally:
        unpacker.close()
    if unpacker.seal is not None:
        unpacker.seen.compare(unpacker.seal)
    elif sealed:
        raise Damaged("its list of checksums is missing: it is cut off or damaged")
    return unpacker.seal is not None


def _check_end(archive: tarfile.TarFile) -> None:
    """Check that the archive ends after its last member: ``tarfile`` takes a damaged header for the end."""
    if archive.fileobj is None:
        return
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise Damaged(f"it is damaged at byte {archive.offset:,}")


class _Unpacker:
    def __init__(self, folder: Path) -> None:
        self._root = os.open(folder, FOLDER_FLAGS)
        self._folders: list[tarfile.TarInfo] = []
        self._files: set[str] = set()
        self.seen = Seal()
        self.seal: Seal | None = None

    def close(self) -> None:
        os.close(self._root)

    def add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        if entry.name == SEAL:
            file = archive.extractfile(entry)
            self.seal = Seal.read(file) if file else None
            return
        parts = _parts(entry.name)
        parent = self._open(parts[:-1])
        try:
            sha256 = self._write(archive, entry, parent, parts)
        finally:
            os.close(parent)
        self.seen.add(entry, sha256)

    def finish(self) -> None:
        """Restore modes and times of folders last, because writing into a folder changes its time."""
        for entry in reversed(self._folders):
            fd = self._open(_parts(entry.name))
            try:
                _restore_mode(fd, entry, least=0o700)
            finally:
                os.close(fd)

    def _write(
        self, archive: tarfile.TarFile, entry: tarfile.TarInfo, parent: int, parts: tuple[str, ...]
    ) -> str:
        """Write one member; returns the SHA-256 of a file, otherwise an empty text."""
        if entry.isdir():
            os.close(_open_or_make(parts[-1], parent))
            self._folders.append(entry)
        elif entry.issym():
            _refuse_leading_out(entry, parts)
            os.symlink(entry.linkname, parts[-1], dir_fd=parent)
        elif entry.islnk():
            self._link(entry, parent, parts[-1])
        elif entry.isreg():
            self._files.add(entry.name)
            return _write_file(archive, entry, parent, parts[-1])
        else:
            raise Damaged(f"{entry.name!r} is neither a file, a folder nor a link")
        return ""

    def _link(self, entry: tarfile.TarInfo, parent: int, name: str) -> None:
        if entry.linkname not in self._files:
            raise Damaged(f"{entry.name!r} is another name of {entry.linkname!r}, which is not in it")
        self._files.add(entry.name)
        source = _parts(entry.linkname)
        folder = self._open(source[:-1])
        try:
            os.link(source[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(folder)

    def _open(self, parts: tuple[str, ...]) -> int:
        """Open a folder below the root and create it if missing; a link on the way raises OSError."""
        fd = os.dup(self._root)
        for part in parts:
            try:
                inner = _open_or_make(part, fd)
            finally:
                os.close(fd)
            fd = inner
        return fd


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise Damaged(f"{name!r} leads out of the folder")
    return path.parts


def _refuse_leading_out(entry: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
    if parts[:2] == ("home", "jobs") and len(parts) > JOB_DEPTH:
        return
    target = os.path.normpath(PurePosixPath(*parts[:-1], entry.linkname))
    if not PurePosixPath(target).is_relative_to("home"):
        raise Damaged(f"{entry.name!r} is a link that leads out of the folder, to {entry.linkname!r}")


def _open_or_make(name: str, folder: int) -> int:
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=folder)
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)


def _write_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, parent: int, name: str) -> str:
    source = archive.extractfile(entry)
    if source is None:
        raise Damaged(f"{entry.name!r} has no content")
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(name, FILE_FLAGS, 0o600, dir_fd=parent), "wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        if size != entry.size:
            raise Damaged(f"{entry.name!r} is cut off")
        _restore_mode(file.fileno(), entry, least=0o600)
    return digest.hexdigest()


def _restore_mode(fd: int, entry: tarfile.TarInfo, *, least: int) -> None:
    os.fchmod(fd, entry.mode & 0o755 | least)
    os.utime(fd, (entry.mtime, entry.mtime))
