"""Uploaded code as content-addressed, read-only folders: ``bundles/<sha256>/``."""

import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from orchestrator.exceptions import Malformed, NotFound, Sentence, TooLarge
from orchestrator.store.bundles.archives import Member, read_members, too_many
from orchestrator.store.bundles.names import UploadNames, member_path, printable
from orchestrator.store.bundles.scripts import refuse_unreadable
from orchestrator.store.files.durable import copy_bytes, sync_folder, sync_tree, write_all
from orchestrator.store.files.untrusted import open_beneath, remove_tree

MIB = 1 << 20
SMALL_BYTES = 16 * MIB  # no ratio is suspicious below this: a few zeros compress a thousandfold
INCOMING = ".incoming-"
LEFTOVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Limits of an upload; ``ratio`` is unpacked to packed bytes."""

    upload_bytes: int = 256 * MIB
    script_bytes: int = 10 * MIB
    total_bytes: int = 1024 * MIB
    members: int = 20_000
    ratio: int = 200
    depth: int = 32
    name_bytes: int = 1024


@dataclass(frozen=True, slots=True)
class BundleFile:
    path: str  # relative, POSIX, NFC
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """Stored code.  The hash covers paths and contents only (no times, modes or archive format)."""

    sha256: str
    files: tuple[BundleFile, ...]  # by path


DEFAULT_LIMITS = BundleLimits()


def store_script(bundles: Path, name: str, data: bytes, limits: BundleLimits = DEFAULT_LIMITS) -> Bundle:
    """Store one script as a bundle of one file.

    Raises:
        Malformed: bad name, or the text is empty, binary or not UTF-8.
        TooLarge: above ``limits.script_bytes``.
    """
    path = member_path(name, depth=1, name_bytes=limits.name_bytes)
    if not path:
        raise Malformed("The script has no name; name it, for example train.py.")
    if len(data) > limits.script_bytes:
        raise too_long(name, len(data), limits)
    refuse_unreadable(name, data)
    content = [_Content(path, len(data), hashlib.sha256(data).hexdigest())]
    stored = bundles / bundle_hash(content)
    if stored.is_dir():
        return _bundle(content)

    def write(folder: Path) -> list[_Content]:
        _write_file(folder / path, iter([data]))
        return content

    return _store(bundles, write)


def too_long(name: str, size_bytes: int, limits: BundleLimits = DEFAULT_LIMITS) -> TooLarge:
    """The error for a script above its limit."""
    return TooLarge(
        Sentence(
            "'{printable}' has {size_bytes:,} bytes; a script may have {script_bytes:,}. Upload an archive, or register data as a dataset.",
            printable=printable(name),
            size_bytes=size_bytes,
            script_bytes=limits.script_bytes,
        )
    )


def script_hash(name: str, data: bytes) -> str:
    """The hash of the bundle that ``store_script`` would make.  Checks and stores nothing."""
    return bundle_hash([_Content(name, len(data), hashlib.sha256(data).hexdigest())])


def store_archive(bundles: Path, archive: BinaryIO, limits: BundleLimits = DEFAULT_LIMITS) -> Bundle:
    """Unpack a seekable zip, tar or tar.gz into a bundle; the kind is detected from the content.

    Raises:
        Malformed: not an archive, damaged, or with a forbidden member, which the sentence names.
        TooLarge: a limit is exceeded.  In both cases nothing stays on disk.
    """
    size = archive.seek(0, os.SEEK_END)
    if size > limits.upload_bytes:
        raise TooLarge(
            Sentence(
                "The archive has {size:,} bytes; {upload_bytes:,} are accepted. Register data as a dataset.",
                size=size,
                upload_bytes=limits.upload_bytes,
            )
        )
    return _store(bundles, lambda folder: _unpack(folder, archive, size, limits))


def store_folder(
    bundles: Path, folder: Path, paths: Iterable[str], limits: BundleLimits = DEFAULT_LIMITS
) -> Bundle:
    """Store these files of a folder as a bundle; no link is followed.

    Raises:
        Malformed: no files, or a name that a bundle cannot have.
        TooLarge: a limit is exceeded.
    """

    def write(into: Path) -> list[_Content]:
        allowance, names, contents = _Allowance(limits, limits.total_bytes), UploadNames(), []
        for given in paths:
            path = member_path(given, depth=limits.depth, name_bytes=limits.name_bytes)
            allowance.count_member()
            names.add_file(path)
            with os.fdopen(open_beneath(folder, given), "rb") as file:
                chunks = iter(partial(file.read, MIB), b"")
                target = into / path
                target.parent.mkdir(parents=True, exist_ok=True)
                contents.append(_Content(path, *_write_file(target, allowance.count(chunks, given))))
        if not contents:
            raise Malformed("There are no files.")
        return contents

    return _store(bundles, write)


def open_bundle(bundles: Path, sha256: str) -> Bundle:
    """The files of a stored bundle.

    Raises:
        NotFound: no bundle has this hash.
    """
    folder = _folder(bundles, sha256)
    files = [BundleFile(path, size) for path, size in _walk(folder, "")]
    return Bundle(sha256, tuple(sorted(files, key=lambda file: file.path)))


def materialise(bundles: Path, sha256: str, into: Path) -> None:
    """Make a writable copy of a bundle.  A folder that is not empty is complete, and left alone.

    The copies have the times of the bundle's files.

    Raises:
        NotFound: no bundle has this hash.
    """
    if into.is_dir() and any(into.iterdir()):
        return
    bundle = open_bundle(bundles, sha256)
    into.parent.mkdir(parents=True, exist_ok=True)
    part = into.with_name(f".{into.name}.{secrets.token_hex(8)}.part")
    try:
        for file in bundle.files:
            _copy_file(bundles / sha256 / file.path, part / file.path)
        sync_tree(part, [part / file.path for file in bundle.files])
        part.rename(into)
    except OSError:
        # Another process was faster: its copy is whole, and may be in use already.
        if not (into.is_dir() and any(into.iterdir())):
            raise
    finally:
        remove_tree(part)
    sync_folder(into.parent)


def clear_leftovers(bundles: Path, *, now: float | None = None) -> int:
    """Remove the folders of uploads that were killed over an hour ago; returns their count."""
    oldest = (time.time() if now is None else now) - LEFTOVER_S
    count = 0
    for folder in bundles.glob(f"{INCOMING}*"):
        if folder.stat().st_mtime < oldest:
            remove_tree(folder)
            count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Content:
    path: str
    size_bytes: int
    sha256: str


def bundle_hash(contents: list[_Content]) -> str:
    """The name of a bundle.  Paths hold no newline, so the listing is unambiguous."""
    listing = "".join(f"{file.sha256} {file.size_bytes} {file.path}\n" for file in contents)
    return hashlib.sha256(f"berth bundle 1\n{listing}".encode()).hexdigest()


def _bundle(contents: list[_Content]) -> Bundle:
    return Bundle(bundle_hash(contents), tuple(BundleFile(file.path, file.size_bytes) for file in contents))


def _store(bundles: Path, write: Callable[[Path], list[_Content]]) -> Bundle:
    """Fill a new folder and rename it last: a crash leaves a leftover, never half a bundle."""
    bundles.mkdir(parents=True, exist_ok=True)
    incoming = bundles / f"{INCOMING}{secrets.token_hex(8)}"
    incoming.mkdir(mode=0o755)
    try:
        bundle = _bundle(sorted(write(incoming), key=lambda file: file.path))
        target = bundles / bundle.sha256
        if not target.is_dir():
            sync_tree(incoming, [incoming / file.path for file in bundle.files])
            _rename_unless_there(incoming, target)
            sync_folder(bundles)
    finally:
        remove_tree(incoming)
    return bundle


def _rename_unless_there(incoming: Path, target: Path) -> None:
    try:
        incoming.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise the same content was uploaded at the same time
            raise


def _unpack(folder: Path, archive: BinaryIO, size: int, limits: BundleLimits) -> list[_Content]:
    allowance = _Allowance(limits, size)
    names = UploadNames()
    contents = []
    for member in read_members(archive, members=limits.members, total_bytes=limits.total_bytes):
        path = member_path(member.name, depth=limits.depth, name_bytes=limits.name_bytes)
        allowance.count_member()
        if member.is_folder:
            if path:
                names.add_folder(path)
            continue
        if not path:
            raise Malformed(
                Sentence("'{printable}' is a file without a name.", printable=printable(member.name))
            )
        names.add_file(path)
        contents.append(_write_member(folder, path, member, allowance))
    if not contents:
        raise Malformed("The archive holds no files.")
    return contents


class _Allowance:
    """Counts unpacked bytes while they are written, and stops at the limits."""

    def __init__(self, limits: BundleLimits, packed_bytes: int) -> None:
        self._limits = limits
        self._ratio_bytes = max(SMALL_BYTES, packed_bytes * limits.ratio)
        self._members = 0
        self._bytes = 0

    def count_member(self) -> None:
        self._members += 1
        if self._members > self._limits.members:
            raise too_many(self._limits.members)

    def count(self, chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
        for chunk in chunks:
            self._bytes += len(chunk)
            if self._bytes > self._limits.total_bytes:
                raise TooLarge(
                    Sentence(
                        "Unpacked, the archive is larger than {total_bytes:,} bytes (at '{printable}'); register large data as a dataset.",
                        total_bytes=self._limits.total_bytes,
                        printable=printable(name),
                    )
                )
            if self._bytes > self._ratio_bytes:
                raise TooLarge(
                    Sentence(
                        "The archive unpacks to over {ratio} times its size (at '{printable}'), which looks like a bomb; register large data as a dataset.",
                        ratio=self._limits.ratio,
                        printable=printable(name),
                    )
                )
            yield chunk


def _write_member(folder: Path, path: str, member: Member, allowance: _Allowance) -> _Content:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return _Content(path, *_write_file(target, allowance.count(member.chunks(), member.name)))


def _write_file(path: Path, chunks: Iterator[bytes]) -> tuple[int, str]:
    """Write a read-only file; returns its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444)
    try:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            write_all(fd, chunk)
        os.fchmod(fd, 0o444)
    finally:
        os.close(fd)
    return size, digest.hexdigest()


def _folder(bundles: Path, sha256: str) -> Path:
    folder = bundles / sha256
    if not re.fullmatch(r"[0-9a-f]{64}", sha256) or not folder.is_dir():
        raise NotFound(
            Sentence(
                "There is no bundle {printable}; upload the code again.", printable=printable(sha256)[:64]
            )
        )
    return folder


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder / entry.name, f"{path}/")
            elif stat.S_ISREG((status := entry.stat(follow_symlinks=False)).st_mode):
                yield path, status.st_size


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source_fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        target_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            copy_bytes(source_fd, target_fd)
            # The same time tells later which files the run changed.
            written_ns = os.fstat(source_fd).st_mtime_ns
            os.utime(target_fd, ns=(written_ns, written_ns))
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)
