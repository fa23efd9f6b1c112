"""Puts a backup back; what was there before is kept aside."""

import fcntl
import json
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from orchestrator.exceptions import Conflict, Malformed
from orchestrator.server.backup.dumping import dump_name, keep_aside, load
from orchestrator.server.backup.sealing import SEALED
from orchestrator.server.backup.unpacking import unpack
from orchestrator.server.backup.writing import ABOUT, LEFT_OUT, VERSION

LOCKS = ("up.lock", "agent.lock")
# Of a backup that somebody compressed, the last two.
UNREADABLE = (tarfile.TarError, OSError, KeyError, ValueError, TypeError, OverflowError, EOFError, zlib.error)
UNCHECKED = (
    "An older version wrote this backup, without checksums: it can be restored, but nobody can tell whether "
    "each byte is still the one that was written."
)


class CannotRestore(Conflict):
    """The state folder is in use, or the file is no backup of this kind of database."""


def restore(source: Path, tell: Callable[[str], object] = lambda text: None) -> None:
    """Put a backup in the place of the present state.

    Trainings that run on are not known to the restored database: ``doctor`` ends them and keeps their folders.

    Raises:
        CannotRestore: Berth runs.
        Malformed: the file is no backup, or not as it was written; nothing is replaced.
        DatabaseToolFailed
    """
    home = settings.HOME.root
    _refuse_in_use(home)
    try:
        with (
            tarfile.open(source) as archive,
            tempfile.TemporaryDirectory(dir=home, prefix="restore-") as folder,
        ):
            sealed = _check(archive)
            if not unpack(archive, Path(folder), sealed=sealed):
                tell(UNCHECKED)
            aside = _put_aside(home, Path(folder))
            for path in Path(folder, "home").iterdir():
                path.rename(home / path.name)
            load(Path(folder, dump_name()))
    except UNREADABLE as error:
        raise Malformed(f"{source} could not be restored: {error}.") from error
    tell(f"What was there before is in {aside}; remove it when all is well.")


def _refuse_in_use(home: Path) -> None:
    for name in LOCKS:
        path = home / name
        if not path.exists():
            continue
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotRestore(f"Berth runs for {home}; stop it with `make down` first.") from None


def _check(archive: tarfile.TarFile) -> bool:
    """Whether the backup has checksums.

    Raises:
        KeyError, ValueError, TypeError: it is no backup of ours.
    """
    first = archive.next()
    if first is None or first.name != ABOUT:
        raise ValueError("it is no backup")
    file = archive.extractfile(first)
    about = json.load(file) if file else {}
    if about.get("v") != VERSION:
        raise ValueError("it is no backup of this version")
    if about["database"] != dump_name():
        raise ValueError(f"it holds {about['database']}, but DATABASE_URL asks for another kind of database")
    return SEALED in about


def _put_aside(home: Path, new: Path) -> Path:
    """Move what the backup replaces out of its way, with a copy of the database as it is."""
    aside = home / "before-restore" / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside.mkdir(parents=True, mode=0o700)
    keep_aside(aside / dump_name())
    for path in Path(new, "home").iterdir():
        old = home / path.name
        if old.exists() and path.name not in LEFT_OUT:
            old.rename(aside / path.name)
    return aside
