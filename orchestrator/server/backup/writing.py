"""Write a backup: the database first, so that files are never older than the rows that refer to them."""

import errno
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from django.conf import settings

from orchestrator.exceptions import Unavailable
from orchestrator.server.backup.dumping import dump, dump_name
from orchestrator.server.backup.sealing import SEAL, SEALED, Seal
from orchestrator.store import backup_record
from orchestrator.store.files.durable import sync_folder
from orchestrator.store.files.untrusted import walk_tree

VERSION = 1
ABOUT = "backup.json"
# Recreated at each start, tied to the present processes, or put aside.
LEFT_OUT = frozenset(
    {
        "redis",
        "services",
        "static",
        "logs",
        "uploads",
        "quarantine",
        "before-restore",
        "environments",
        "mirrors",
        "caches",
        "fetched",
        "shared-models",
    }
)
LONGEST_PATH = 1_500  # of a folder: deeper ones might not fit into another BERTH_HOME
MOST_HOLES_BYTES = 4 << 30
LEFT_OUT_FILES = (".lock", ".sqlite3", ".sqlite3-wal", ".sqlite3-shm", ".part", ".tmp", backup_record.FILE)
CHECKPOINT_FOLDERS = frozenset({"generations", "checkpoints"})


class CannotBackUp(Unavailable):
    """The backup could not be written; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a backup."""

    files: int
    size_bytes: int
    hollow: int = 0  # sparse files that were skipped


def write(target: Path, *, checkpoints: bool = True, database_only: bool = False) -> Contents:
    """Write a backup that is complete or absent, while jobs may run.

    Args:
        target: a new file outside of the state folder.
        checkpoints: False saves space; jobs then start from the beginning after a restore.
        database_only: database, keys and settings; the files of jobs stay as they are at a restore.

    Raises:
        CannotBackUp, DatabaseToolFailed
    """
    target = target.resolve()
    if target.exists():
        raise CannotBackUp(f"{target} already exists. Give another name.")
    if target.is_relative_to(settings.HOME.root):
        raise CannotBackUp(f"{target} is inside {settings.HOME.root}. Write the backup to another disk.")
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            contents = _write_archive(file, checkpoints=checkpoints, database_only=database_only)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise CannotBackUp(f"{target} could not be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
    backup_record.note_backup(
        settings.HOME, target, "database" if database_only else "file", contents.size_bytes
    )
    return contents


def _write_archive(file: io.BufferedWriter, *, checkpoints: bool, database_only: bool) -> Contents:
    count = size_bytes = hollow = 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        seal = Seal()
        _add_about(archive, seal)
        with tempfile.TemporaryDirectory(prefix="berth-backup-") as folder:
            dumped = Path(folder, dump_name())
            dump(dumped)
            size_bytes += _add(archive, seal, dumped, dumped.name)
        root = settings.HOME.root
        for path, name in _settings_of(root) if database_only else files_of(root, checkpoints=checkpoints):
            if is_hollow(path):
                hollow += 1
                continue
            count += 1
            size_bytes += _add(archive, seal, path, name)
        seal.write(archive)
    return Contents(count, size_bytes, hollow)


def is_hollow(path: Path) -> bool:
    """Whether a file is mostly holes: an archive would store each zero of a job's sparse terabyte."""
    try:
        status = path.lstat()
    except OSError:
        return False  # deleted since, so it is not added either
    return status.st_size - status.st_blocks * 512 > MOST_HOLES_BYTES


def _settings_of(root: Path) -> Iterator[tuple[Path, str]]:
    """The files of the state folder itself: keys and settings."""
    for path in sorted(root.iterdir()):
        if path.is_file() and not path.is_symlink() and not path.name.endswith(LEFT_OUT_FILES):
            yield path, f"home/{path.name}"


def files_of(root: Path, *, checkpoints: bool) -> Iterator[tuple[Path, str]]:
    """Paths to back up, folders before their content; without sockets, pipes and temporary files.

    A folder of the state that lies elsewhere, such as ``jobs`` on a larger disk behind a link, is a plain folder in
    the backup.
    """
    yield from _below(root, PurePosixPath(), checkpoints=checkpoints)
    for path in sorted(root.iterdir()):
        if path.is_symlink() and path.is_dir() and path.name not in LEFT_OUT:
            yield path.resolve(), f"home/{path.name}"
            yield from _below(path.resolve(), PurePosixPath(path.name), checkpoints=checkpoints)


def _below(top: Path, place: PurePosixPath, *, checkpoints: bool) -> Iterator[tuple[Path, str]]:
    """As ``files_of``, below one folder.

    Args:
        place: of the folder in the state.
    """
    for folder, names, files in walk_tree(top):
        here = Path(folder)
        inside = place / here.relative_to(top)
        if not inside.parts:
            names[:] = [name for name in names if name not in LEFT_OUT]
            files[:] = [name for name in files if not (here / name).is_dir()]  # links, whose targets follow
        if len(inside.parts) == 2 and inside.parts[0] == "jobs" and not checkpoints:
            names[:] = [name for name in names if name not in CHECKPOINT_FOLDERS]
        names[:] = [name for name in names if not name.endswith((".tmp", ".trash"))]
        if len(str(inside)) > LONGEST_PATH:
            names.clear()
        for name in (*names, *files):
            if name in files and not inside.parts and name.endswith(LEFT_OUT_FILES):
                continue
            yield here / name, f"home/{inside / name}"


def _add_about(archive: tarfile.TarFile, seal: Seal) -> None:
    about = {"v": VERSION, "created_s": time.time(), "database": dump_name(), SEALED: SEAL}
    data = json.dumps(about).encode()
    entry = tarfile.TarInfo(ABOUT)
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))
    seal.add(entry, hashlib.sha256(data).hexdigest())


def _add(archive: tarfile.TarFile, seal: Seal, path: Path, name: str) -> int:
    """Add one member with its present size: logs may grow and files may vanish during the backup."""
    try:
        if stat.S_ISREG(path.lstat().st_mode):
            return _add_file(archive, seal, path, name)
        entry = archive.gettarinfo(path, name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        return 0
    if entry is not None and (entry.isdir() or entry.issym()):
        archive.addfile(entry)
        seal.add(entry)
    return 0


def _add_file(archive: tarfile.TarFile, seal: Seal, path: Path, name: str) -> int:
    """Add a file, or a hard link to a file in the archive.

    The file is opened first: if it vanished before being read, later links to it would lead nowhere.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    with os.fdopen(fd, "rb") as file:
        entry = archive.gettarinfo(arcname=name, fileobj=file)  # also detects hard links
        if entry is None or not (entry.isreg() or entry.islnk()):
            return 0
        content = _Exactly(file, entry.size)
        archive.addfile(entry, content)
        seal.add(entry, content.sha256.hexdigest())
    return entry.size


class _Exactly(io.RawIOBase):
    """A file read to its announced length; a truncated file is padded with zeros."""

    def __init__(self, file: io.BufferedReader, size_bytes: int) -> None:
        self._file, self._remaining = file, size_bytes
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._remaining if size < 0 else min(size, self._remaining)
        data = self._file.read(wanted).ljust(wanted, b"\0")
        self._remaining -= wanted
        self.sha256.update(data)
        return data
