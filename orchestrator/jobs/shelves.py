"""The folder of each person's pushed data: what lies there, the room it takes, and how it is cleared."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User

from berth.shared import words
from orchestrator.exceptions import Conflict, Forbidden, Sentence, TooLarge
from orchestrator.models import Dataset, Job
from orchestrator.people.rights import Someone
from orchestrator.spec.job_spec import GIB
from orchestrator.store.files.untrusted import remove_tree, walk_tree

PARTS_KEPT = timedelta(days=7)  # after the last byte that came, and of files that no dataset has
FREE_SHARE = 0.05  # of the disk, which pushed data does not fill
RECOUNT_AFTER_S = 10.0
# So near to the limit each part is counted: other processes take parts as well, and are not heard of until a count.
RECOUNT_NEAR_BYTES = 16 * GIB
# By shelf: when it was counted (monotonic), and the bytes then, with what came since.
_counted: dict[Path, tuple[float, int]] = {}


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder of one person."""

    root: Path

    @property
    def contents(self) -> Path:
        """Files by their SHA-256; datasets are hard links to them."""
        return self.root / "contents"

    @property
    def parts(self) -> Path:
        return self.root / "parts"

    def part(self, key: str) -> Path:
        return self.parts / key

    def known(self, key: str) -> Path:
        """Holds the SHA-256 of a file whose sender could not tell it."""
        return self.root / "known" / key

    def version(self, name: str, version: str) -> Path:
        return self.root / "sets" / name / version


def shelf_of(user: Someone) -> Shelf:
    return Shelf(settings.HOME.pushed / str(user.pk))


@contextmanager
def alone(shelf: Shelf) -> Iterator[None]:
    """Let one process at a time make a version of this person's, which is a folder first and then a row.

    To be entered before a transaction: one that waits here must not keep others from the database.
    """
    shelf.root.mkdir(parents=True, exist_ok=True)
    fd = os.open(shelf.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def check_room(user: User, shelf: Shelf, more_bytes: int) -> None:
    """Check that a person's share and the disk have room for more pushed data.

    Raises:
        TooLarge: with what takes most of the share.
    """
    limit_bytes = settings.ENVIRONMENT.user_data_gib * GIB
    used_bytes = _used_for_a_part(shelf, more_bytes, limit_bytes) if limit_bytes else 0
    if limit_bytes and used_bytes + more_bytes > limit_bytes:
        raise TooLarge(
            Sentence(
                "This needs {size}; of your {size_2} for pushed data {size_3} are in use{largest}. Remove what you no longer need (berth data rm NAME), or ask an administrator for more (BERTH_USER_DATA_GIB).",
                size=words.size(more_bytes),
                size_2=words.size(limit_bytes),
                size_3=words.size(used_bytes),
                largest=_largest(user),
            )
        )
    disk = shutil.disk_usage(settings.HOME.root)
    if more_bytes > disk.free - disk.total * FREE_SHARE:
        raise TooLarge(
            Sentence(
                "This needs {size}, and the server's disk is too full for that.", size=words.size(more_bytes)
            )
        )


def _used_for_a_part(shelf: Shelf, more_bytes: int, limit_bytes: int) -> int:
    """What a shelf holds: counted now near the limit, else a moment ago, with what came since.

    Each part of 50,000 small files asks, and counting these takes half a second.
    """
    now_s = time.monotonic()
    counted_s, used_bytes = _counted.get(shelf.root, (float("-inf"), 0))
    if now_s - counted_s > RECOUNT_AFTER_S or used_bytes + more_bytes > limit_bytes - RECOUNT_NEAR_BYTES:
        counted_s, used_bytes = now_s, _size(shelf.contents) + _size(shelf.parts)
    _counted[shelf.root] = (counted_s, used_bytes + more_bytes)
    return used_bytes


def _largest(user: User) -> Sentence | str:
    largest = Dataset.objects.pushed_by(user.pk).order_by("-size_bytes").first()
    return (
        Sentence(
            ", most by {name}@{version} ({size})",
            name=largest.name,
            version=largest.version,
            size=words.size(largest.size_bytes or 0),
        )
        if largest
        else ""
    )


def _size(folder: Path) -> int:
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # a part that is whole just now
                    total += entry.stat().st_size
    except FileNotFoundError:
        return 0
    return total


def used_bytes(user: Someone) -> int:
    """What a person's pushed data takes on the disk, unfinished files among it; equal files count once."""
    shelf = shelf_of(user)
    return _size(shelf.contents) + _size(shelf.parts)


def has_row(place: Path) -> bool:
    """Whether the folder of a version belongs to a dataset."""
    owner, _, name, version = place.relative_to(settings.HOME.pushed).parts
    return Dataset.objects.pushed_by(int(owner)).filter(name=name, version=version).exists()


def check_removal(user: Someone, dataset: Dataset) -> None:
    """Check that a person may remove a dataset, and that no unfinished job needs it.

    Raises:
        Forbidden: it is another person's.
        Conflict: a job waits for it or reads it.
    """
    if dataset.owner_id != user.pk and not getattr(user, "is_staff", False):
        raise Forbidden(
            Sentence(
                "{reference} belongs to {username}; only they and admins can remove it.",
                reference=dataset.reference,
                username=dataset.owner.username,
            )
        )
    jobs = Job.objects.unfinished().only("id", "name", "spec_fields")
    reader = next((job for job in jobs if dataset.reference in (job.spec_fields.get("datasets") or [])), None)
    if reader is not None:
        raise Conflict(
            Sentence(
                "{reader} uses {reference}; cancel it, or wait for its end.",
                reader=reader,
                reference=dataset.reference,
            )
        )


def remove(dataset: Dataset) -> None:
    """Forget a dataset; of pushed data also the files that no other version has."""
    if not dataset.is_pushed:
        dataset.delete()
        return
    path = settings.HOME.pushed / dataset.path
    shelf = Shelf(settings.HOME.pushed / path.relative_to(settings.HOME.pushed).parts[0])
    with alone(shelf):  # a push of the same version must not come between its row and its files
        _remove_pushed(dataset, shelf)


def _remove_pushed(dataset: Dataset, shelf: Shelf) -> None:
    place = shelf.version(dataset.name, dataset.version)
    dataset.delete()
    inodes = {entry.stat().st_ino for entry in _files_below(place)}
    remove_tree(place)
    for content in shelf.contents.iterdir():
        about = content.stat()
        if about.st_ino in inodes and about.st_nlink == 1:
            content.unlink()


def _files_below(place: Path) -> Iterator[Path]:
    for folder, _, names in walk_tree(place):
        yield from (Path(folder, os.fsdecode(name)) for name in names)


def sweep(now: datetime) -> None:
    """Remove parts that nobody goes on with, and files that never became a dataset's."""
    oldest = (now - PARTS_KEPT).timestamp()
    for shelf in map(Shelf, settings.HOME.pushed.iterdir() if settings.HOME.pushed.is_dir() else ()):
        for path in [
            *shelf.parts.glob("*"),
            *shelf.contents.glob("*"),
            *(shelf.root / "known").glob("*"),
        ]:
            about = path.stat()
            if about.st_nlink == 1 and about.st_mtime < oldest:
                path.unlink()
        unfinished = [*(shelf.root / "made").glob("*"), *shelf.root.glob("sets/*/*")]
        for folder in unfinished:
            if folder.stat().st_mtime < oldest and (folder.parent.name == "made" or not has_row(folder)):
                remove_tree(folder)
