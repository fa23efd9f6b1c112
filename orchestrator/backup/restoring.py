"""Puts a backup back; what was there before is kept aside."""

import fcntl
import json
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from orchestrator.backup.dumping import dump, dump_name, load
from orchestrator.backup.writing import ABOUT, LEFT_OUT, VERSION
from orchestrator.exceptions import Conflict, Malformed

LOCKS = ("up.lock", "agent.lock")


class CannotRestore(Conflict):
    """The state folder is in use, or the file is no backup of this kind of database."""


def restore(source: Path, tell: Callable[[str], object] = lambda text: None) -> None:
    """Put a backup in the place of the present state.

    Trainings that run on are not known to the restored database: ``doctor`` ends them and keeps their folders.

    Raises:
        CannotRestore: Berth runs.
        Malformed: the file is no backup.
        DatabaseToolFailed
    """
    home = settings.HOME.root
    _refuse_in_use(home)
    try:
        with (
            tarfile.open(source) as archive,
            tempfile.TemporaryDirectory(dir=home, prefix="restore-") as folder,
        ):
            _check(archive)
            archive.extractall(folder, filter="data")
            aside = _put_aside(home, Path(folder))
            for path in Path(folder, "home").iterdir():
                path.rename(home / path.name)
            load(Path(folder, dump_name()))
    except (tarfile.TarError, OSError, KeyError, ValueError) as error:
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


def _check(archive: tarfile.TarFile) -> None:
    """Raises KeyError, ValueError for what is no backup of ours."""
    file = archive.extractfile(ABOUT)
    about = json.load(file) if file else {}
    if about.get("v") != VERSION:
        raise ValueError("it is no backup of this version")
    if about["database"] != dump_name():
        raise ValueError(f"it holds {about['database']}, but DATABASE_URL asks for another kind of database")


def _put_aside(home: Path, new: Path) -> Path:
    """Move what the backup replaces out of its way, with a copy of the database as it is."""
    aside = home / "before-restore" / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside.mkdir(parents=True, mode=0o700)
    dump(aside / dump_name())
    for path in Path(new, "home").iterdir():
        old = home / path.name
        if old.exists() and path.name not in LEFT_OUT:
            old.rename(aside / path.name)
    return aside
