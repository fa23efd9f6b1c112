"""Snapshots: folders that share their unchanged files by hard links, for more data than fits into one file."""

import json
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from django.conf import settings

from orchestrator.server.backup.dumping import dump, dump_name
from orchestrator.server.backup.sealing import Damaged
from orchestrator.server.backup.writing import ABOUT, VERSION, CannotBackUp, files_of, is_hollow
from orchestrator.store.backup_record import note_backup
from orchestrator.store.files.durable import sync_folder
from orchestrator.store.files.untrusted import remove_tree

LIST = "files.json"
_STAMP = "%Y%m%dT%H%M%SZ"
_UNFINISHED = ".unfinished-"


@dataclass(slots=True)
class Snapshot:
    """A written snapshot: what was copied, and what was linked to files that were there already."""

    folder: Path
    copied: int = 0
    copied_bytes: int = 0
    linked: int = 0
    hollow: int = 0  # sparse files that were skipped


def take(place: Path, *, keep: int) -> Snapshot:
    """Write a new snapshot below ``place``, complete or absent, while jobs may run.

    A file that is as in the newest snapshot is linked to it. On the disk of the state, code and checkpoints, which
    are never written again, are linked to the state itself. Everything else is copied.

    Args:
        keep: number of newest snapshots that stay.

    Raises:
        CannotBackUp, DatabaseToolFailed
    """
    place = place.resolve()
    if place.is_relative_to(settings.HOME.root):
        raise CannotBackUp(f"{place} is inside {settings.HOME.root}. Give a folder outside of it.")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear_unfinished(place)
        with tempfile.TemporaryDirectory(dir=place, prefix=_UNFINISHED) as unfinished:
            snapshot = _write(Path(unfinished), newest(place))
            snapshot.folder = _free_name(place)
            Path(unfinished).rename(snapshot.folder)
            Path(unfinished).mkdir()  # for its removal
        sync_folder(place)
        for old in taken(place)[:-keep]:
            remove_tree(old)
    except OSError as error:
        raise CannotBackUp(f"The snapshot in {place} could not be written: {error}.") from error
    note_backup(settings.HOME, snapshot.folder, "snapshot", snapshot.copied_bytes)
    return snapshot


def taken(place: Path) -> list[Path]:
    """The finished snapshots, the oldest first."""
    return sorted(path for path in place.iterdir() if (path / LIST).is_file() and path.name[:1].isdigit())


def newest(place: Path) -> Path | None:
    return next(reversed(taken(place)), None)


def _clear_unfinished(place: Path) -> None:
    """Remove what a run that was killed left, unless it may still be at work."""
    for path in place.glob(f"{_UNFINISHED}*"):
        if time.time() - path.stat().st_mtime > 86_400:
            remove_tree(path)


def _free_name(place: Path) -> Path:
    name = time.strftime(_STAMP, time.gmtime())
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    return next(place / each for each in names if not (place / each).exists())


def _write(folder: Path, previous: Path | None) -> Snapshot:
    snapshot = Snapshot(folder)
    dump(folder / dump_name())  # first, so that files are never older than the rows that refer to them
    about = {"v": VERSION, "created_s": time.time(), "database": dump_name()}
    (folder / ABOUT).write_text(json.dumps(about))
    entries: dict[str, list[int]] = {}
    (folder / "home").mkdir(mode=0o700)
    for path, name in files_of(settings.HOME.root, checkpoints=True):
        try:
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and is_hollow(path):
                snapshot.hollow += 1
                continue
            if _put(path, status, folder / name, previous and previous / name, snapshot):
                copy = (folder / name).lstat()
                entries[name] = [copy.st_size, copy.st_mtime_ns] if stat.S_ISREG(copy.st_mode) else []
        except FileNotFoundError:  # deleted since it was listed
            continue
    (folder / LIST).write_text(json.dumps({"v": 1, "files": entries}))
    return snapshot


def _put(path: Path, status: os.stat_result, target: Path, previous: Path | None, snapshot: Snapshot) -> bool:
    if stat.S_ISDIR(status.st_mode):
        target.mkdir(mode=stat.S_IMODE(status.st_mode) & 0o755 | 0o700, exist_ok=True)
    elif stat.S_ISLNK(status.st_mode):
        target.symlink_to(path.readlink())
    elif not stat.S_ISREG(status.st_mode):
        return False
    elif source := _linkable(path, status, previous, target, snapshot.folder / "home"):
        os.link(source, target, follow_symlinks=False)
        snapshot.linked += 1
    else:
        shutil.copy2(path, target, follow_symlinks=False)
        snapshot.copied += 1
        snapshot.copied_bytes += status.st_size
    return True


def _linkable(
    path: Path, status: os.stat_result, previous: Path | None, target: Path, home: Path
) -> Path | None:
    """The file that the new name may share: of the newest snapshot, or the state's own if it never changes."""
    if previous is not None:
        try:
            old = previous.lstat()
        except OSError:
            old = None
        if old is not None and stat.S_ISREG(old.st_mode):
            same = (old.st_size, old.st_mtime_ns, old.st_mode) == (
                status.st_size,
                status.st_mtime_ns,
                status.st_mode,
            )
            if same and old.st_nlink < 60_000:  # ext4 allows 65,000 names
                return previous
    inside = target.relative_to(home).parts
    never_changes = inside[0] == "bundles" or (inside[0] == "jobs" and inside[2:3] == ("generations",))
    return path if never_changes and status.st_dev == target.parent.stat().st_dev else None


def copy_out(snapshot: Path, folder: Path) -> None:
    """Copy a snapshot into an empty folder, after comparing it with its list.

    Raises:
        Damaged: a file is missing, or is not what was written.
        OSError
    """
    files: dict[str, list[int]] = json.loads((snapshot / LIST).read_text())["files"]
    for name, expected in files.items():
        if ".." in PurePosixPath(name).parts or not name.startswith("home/"):
            raise Damaged(f"{name!r} leads out of the folder")
        try:
            status = (snapshot / name).lstat()
        except FileNotFoundError:
            raise Damaged(f"{name!r} is missing from it") from None
        if expected and [status.st_size, status.st_mtime_ns] != expected:
            raise Damaged(f"{name!r} is not what was written: its size or time differs")
    shutil.copytree(snapshot / "home", folder / "home", symlinks=True)
    shutil.copy2(snapshot / dump_name(), folder / dump_name())
