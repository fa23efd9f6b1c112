"""Data that people push: sent file by file in parts, kept once by content, a dataset of theirs alone when it is whole."""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError

from orchestrator.exceptions import Conflict, Malformed, NotFound, Sentence
from orchestrator.jobs import datasets
from orchestrator.jobs.shelves import Shelf, alone, check_room, has_row, shelf_of
from orchestrator.models import Dataset
from orchestrator.store.files.durable import sync_tree
from orchestrator.store.files.untrusted import remove_tree

PART_BYTES = 8 * 1024**2
MOST_FILES = 50_000
LONGEST_PATH = 800
LONGEST_NAME_BYTES = 255  # of each part: the limit of file systems of Linux
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PushedFile:
    """A file of the dataset to be."""

    path: str
    size_bytes: int
    sha256: str  # of the content; empty where the sender cannot tell
    token: str  # else what the sender knows it by: its time of change

    @property
    def key(self) -> str:
        """Names its parts: an equal file goes on where it was."""
        facts = self.sha256 or f"{self.path}\n{self.size_bytes}\n{self.token}"
        return hashlib.sha256(facts.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Missing:
    """A file that is not here yet."""

    file: PushedFile
    sent_bytes: int


def push(
    user: User,
    *,
    name: str,
    version: str | None,
    description: str,
    files: Sequence[PushedFile],
    is_file: bool,
) -> tuple[Dataset | None, list[Missing]]:
    """Make the dataset if all of its files are here, else say what is missing; to be asked again after that is sent.

    Content that is the newest version's already makes no other version.

    Raises:
        Malformed: a name or path of the wrong form.
        Conflict: the name is a registered dataset's, or the version has other content.
        TooLarge: beyond this person's share of the disk.
    """
    description = datasets.check_names(name, version or "1", description)
    _check_files(files, is_file=is_file)
    if Dataset.objects.registered().filter(name=name).exists():
        raise Conflict(
            Sentence("{name} is a dataset that is registered for everybody; choose another name.", name=name)
        )
    shelf = shelf_of(user)
    sums = {file.path: _sum_of(shelf, file) for file in files}
    missing = [Missing(file, _sent(shelf, file)) for file in files if sums[file.path] is None]
    if missing:
        check_room(user, shelf, sum(each.file.size_bytes - each.sent_bytes for each in missing))
        _expect(shelf, missing)
        return None, missing
    listed = [(path, sha256) for path, sha256 in sorted(sums.items()) if sha256]
    size_bytes = sum(file.size_bytes for file in files)
    with alone(shelf):
        return keep(user, name, version, description, listed, size_bytes, is_file=is_file), []


def _check_files(files: Sequence[PushedFile], *, is_file: bool) -> None:
    if not files or len(files) > MOST_FILES or (is_file and len(files) > 1):
        raise _malformed(
            Sentence(
                "A dataset has 1 to {most_files:,} files; this has {files:,}. Put many small ones into an archive.",
                most_files=MOST_FILES,
                files=len(files),
            )
        )
    paths = {file.path for file in files}
    for file in files:
        parts = PurePosixPath(file.path).parts
        plain = (
            file.path.isprintable() and "\\" not in file.path and str(PurePosixPath(file.path)) == file.path
        )
        if (
            not plain
            or not parts
            or ".." in parts
            or file.path.startswith("/")
            or len(file.path) > LONGEST_PATH
            or any(len(part.encode()) > LONGEST_NAME_BYTES for part in parts)
        ):
            raise _malformed(
                Sentence("{path!r} cannot be the path of a file in a dataset.", path=file.path[:80])
            )
        if any(str(parent) in paths for parent in PurePosixPath(file.path).parents) or file.size_bytes < 0:
            raise _malformed(Sentence("{path!r} is below a file, or has no size.", path=file.path[:80]))
        if file.sha256 and not _SHA256.fullmatch(file.sha256):
            raise _malformed(Sentence("The checksum of {path!r} is no SHA-256.", path=file.path[:80]))
    if len(paths) < len(files):
        raise _malformed("A path stands twice in the list.")


def _malformed(sentence: str) -> Malformed:
    return Malformed(sentence, fields={"files": [sentence]})


def _sum_of(shelf: Shelf, file: PushedFile) -> str | None:
    """The SHA-256 of a file that is here whole; None where it is not."""
    sha256 = file.sha256
    if not sha256:
        try:
            sha256 = shelf.known(file.key).read_text()
        except FileNotFoundError:
            return None
    try:
        return sha256 if (shelf.contents / sha256).stat().st_size == file.size_bytes else None
    except FileNotFoundError:
        return None


def _sent(shelf: Shelf, file: PushedFile) -> int:
    try:
        return min(shelf.part(file.key).stat().st_size, file.size_bytes)
    except FileNotFoundError:
        return 0


def _expect(shelf: Shelf, missing: Sequence[Missing]) -> None:
    """Make the parts: only what was announced, and had room, may be sent."""
    for folder in (shelf.contents, shelf.parts, shelf.known("x").parent):
        folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        shelf.part(each.file.key).touch()


def take_part(
    user: User, key: str, offset: int, size_bytes: int, sha256: str, data: bytes, data_sha256: str
) -> int:
    """Take the bytes of a file from ``offset`` on; returns how many of the file are here, where the sender goes on.

    Bytes that do not follow what is here change nothing, so that a part may be sent twice.

    Args:
        sha256: of the whole file, if the sender knows it.
        data_sha256: of these bytes, likewise.

    Raises:
        NotFound: nobody announced this file.
        Malformed: the bytes came damaged, or the file is not what was announced.
        TooLarge: beyond this person's share of the disk, whatever was announced before.
    """
    shelf = shelf_of(user)
    if data_sha256 and hashlib.sha256(data).hexdigest() != data_sha256:
        raise Malformed("This part came damaged; send it again.")
    with _part(shelf, key) as part:
        here = os.fstat(part).st_size
        if offset == here and here + len(data) <= size_bytes:
            check_room(user, shelf, len(data))
            os.pwrite(part, data, offset)
            here += len(data)
        if here == size_bytes:
            _finish(shelf, key, part, sha256)
    return here


@contextmanager
def _part(shelf: Shelf, key: str) -> Iterator[int]:
    """The locked part of a file: two connections may send it at once."""
    try:
        if not _SHA256.fullmatch(key):
            raise FileNotFoundError
        fd = os.open(shelf.part(key), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NotFound(
            "This file was not announced, or is here already; ask again what is missing."
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _finish(shelf: Shelf, key: str, part: int, sha256: str) -> None:
    os.fsync(part)
    with os.fdopen(os.dup(part), "rb") as file:
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 and found != sha256:
        shelf.part(key).unlink(missing_ok=True)
        raise Malformed(
            "The file is not what was announced (did it change meanwhile?); send it again from its beginning."
        )
    if not sha256:
        shelf.known(key).write_text(found)
    os.fchmod(part, 0o444)
    if shelf.part(key).exists():  # not yet moved by the other connection
        shelf.part(key).replace(shelf.contents / found)


def digest_of(listed: Sequence[tuple[str, str]]) -> str:
    """The checksum of a dataset: of the path and SHA-256 of each file, sorted by path."""
    return hashlib.sha256("".join(f"{sha256} {path!r}\n" for path, sha256 in listed).encode()).hexdigest()


def keep(
    user: User,
    name: str,
    version: str | None,
    description: str,
    listed: Sequence[tuple[str, str]],
    size_bytes: int,
    *,
    is_file: bool,
) -> Dataset:
    """Make a dataset of contents that are on this person's shelf; to be called within ``alone``.

    Args:
        version: None is the next number, or the newest version if it has the same content.
        listed: path and SHA-256 of each file, sorted.

    Raises:
        Conflict: the version has other content, or another push makes it right now.
    """
    shelf = shelf_of(user)
    digest = digest_of(listed)
    earlier = Dataset.objects.pushed_by(user.pk).filter(name=name)
    known = earlier.filter(version=version).first() if version else earlier.order_by("-pk").first()
    if known is not None and known.sha256 == digest:
        return known
    if known is not None and version:
        raise Conflict(
            Sentence(
                "{name}@{version} has other content already; leave out the version for a new one.",
                name=name,
                version=version,
            )
        )
    number = version or str(
        1 + max((int(each.version) for each in earlier if each.version.isdecimal()), default=0)
    )
    place = shelf.version(name, number)
    try:
        _link(shelf, place, listed)
        inner = place / listed[0][0] if is_file else place
        return Dataset.objects.create(
            name=name,
            version=number,
            path=str(inner.relative_to(settings.HOME.pushed)),
            description=description,
            sha256=digest,
            size_bytes=size_bytes,
            owner=user,
        )
    except (IntegrityError, FileExistsError) as error:
        raise Conflict(
            Sentence("Another push makes {name}@{number} right now; try again.", name=name, number=number)
        ) from error


def _link(shelf: Shelf, place: Path, listed: Sequence[tuple[str, str]]) -> None:
    """Make the folder of a version beside its place; a rename shows it whole."""
    made = shelf.root / "made" / f"{os.getpid()}-{time.monotonic_ns()}"
    try:
        for path, sha256 in listed:
            target = made / path
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_content(shelf.contents / sha256, target)
        sync_tree(made, [made / path for path, _ in listed])
    except OSError:  # the disk is full, or a name is too long for it
        remove_tree(made)
        raise
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not has_row(place):
        remove_tree(place)  # of a push that was killed before its row was written
    try:
        made.rename(place)
    except OSError:
        remove_tree(made)
        raise FileExistsError(place) from None


def _link_content(content: Path, target: Path) -> None:
    """Give a content one more name.

    A file of ext4 has at most 65,000; then another copy of it goes on: many empty files, in each version of a dataset,
    are one content.
    """
    try:
        os.link(content, target)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        copy = content.with_name(f"{content.name}.copy")
        copy.unlink(missing_ok=True)  # of a push that was killed
        shutil.copyfile(content, copy)
        copy.chmod(0o444)
        sync_tree(content.parent, [copy])
        copy.replace(content)
        os.link(content, target)
