"""Restore a backup; the previous state is kept aside."""

import fcntl
import json
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from django.conf import settings

from berth.shared.words import server_command
from orchestrator.exceptions import Conflict, Malformed
from orchestrator.server.backup import snapshots
from orchestrator.server.backup.dumping import dump_name, keep_aside, load
from orchestrator.server.backup.sealing import SEALED
from orchestrator.server.backup.unpacking import unpack
from orchestrator.server.backup.writing import ABOUT, LEFT_OUT, VERSION

LOCKS = ("up.lock", "agent.lock")
# The last two come from compressed backups.
UNREADABLE = (tarfile.TarError, OSError, KeyError, ValueError, TypeError, OverflowError, EOFError, zlib.error)
UNCHECKED = (
    "An older version wrote this backup without checksums. It can be restored, but damage in it cannot be "
    "detected."
)


class CannotRestore(Conflict):
    """The state folder is in use, or the file is not a backup of this kind of database."""


def restore(source: Path, tell: Callable[[str], object] = lambda text: None) -> None:
    """Replace the present state with a backup.

    The restored database does not know trainings that still run: ``doctor`` ends them and keeps their folders.

    Raises:
        CannotRestore: Berth is running.
        Malformed: the file is not a backup, or is damaged; nothing is replaced.
        DatabaseToolFailed
    """
    home = settings.HOME.root
    refuse_in_use(home)
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix="restore-") as folder:
            if not _take_out(source, Path(folder)):
                tell(UNCHECKED)
            aside = _put_aside(home, Path(folder))
            for path in Path(folder, "home").iterdir():
                path.rename(home / path.name)
            load(Path(folder, dump_name()))
    except UNREADABLE as error:
        raise Malformed(f"{source} could not be restored: {error}.") from error
    tell(f"The previous state is in {aside}. Remove it when everything works.")


def _take_out(source: Path, folder: Path) -> bool:
    """Put a file's or a snapshot's content into a folder; False if nothing could be compared with a list."""
    if source.is_dir():
        _check_about(json.loads((source / ABOUT).read_text()))
        snapshots.copy_out(source, folder)
        return True
    with tarfile.open(source) as archive:
        sealed = _check(archive)
        done = unpack(archive, folder, sealed=sealed)
    (folder / "home").mkdir(exist_ok=True)
    return done


def refuse_in_use(home: Path) -> None:
    """
    Raises:
        CannotRestore: Berth is running.
    """
    for name in LOCKS:
        path = home / name
        if not path.exists():
            continue
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotRestore(
                    f"Berth is running for {home}. Stop it with `{server_command('down')}` first."
                ) from None


def _check(archive: tarfile.TarFile) -> bool:
    """Whether the backup has checksums.

    Raises:
        KeyError, ValueError, TypeError: not a backup of Berth.
    """
    first = archive.next()
    if first is None or first.name != ABOUT:
        raise ValueError("it is not a backup")
    file = archive.extractfile(first)
    about = json.load(file) if file else {}
    _check_about(about)
    return SEALED in about


def _check_about(about: Mapping[str, object]) -> None:
    if about.get("v") != VERSION:
        raise ValueError("it is not a backup of this version")
    if about["database"] != dump_name():
        raise ValueError(f"it holds {about['database']}, but DATABASE_URL names another kind of database")


def _put_aside(home: Path, new: Path) -> Path:
    """Move what the backup replaces aside, with a copy of the present database."""
    aside = home / "before-restore" / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside.mkdir(parents=True, mode=0o700)
    keep_aside(aside / dump_name())
    for path in Path(new, "home").iterdir():
        old = home / path.name
        if old.exists() and path.name not in LEFT_OUT:
            old.rename(aside / path.name)
    return aside
