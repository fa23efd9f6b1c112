"""Checkpoint folders on disk: written whole or not at all, listed, verified, pruned.

A checkpoint is the folder ``<attempt>-<step>/`` with ``state.pt`` and ``manifest.json``:
``{"v": 1, "job", "attempt", "step", "world_size", "strategy", "files": [{"path", "size",
"sha256"}], "created"}``, ``created`` in seconds of wall time; a sharded one has further files.  A
folder that ends in ``.tmp`` or ``.trash`` is what a crash left.  Standard library only; nothing
here unpickles.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from training.checkpoint.files import DISK, Files

MANIFEST = "manifest.json"
STATE = "state.pt"
INDEX = ".metadata"  # of a sharded checkpoint's parts; the name that DCP gives it
VERSION = 1
_NAME = re.compile(r"(\d+)-(\d+)")
_CHUNK_BYTES = 1 << 20


class CheckpointError(Exception):
    """A checkpoint cannot be written or is not what its manifest says."""


class CheckpointRefused(CheckpointError):
    """A checkpoint seems whole, but this program cannot read it, or must not.

    Unlike damage this is no reason to take an older one: what was trained since would be lost.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's folder, not yet verified."""

    attempt: int
    step: int
    folder: Path


def list_places(folder: Path) -> list[Place]:
    """The checkpoints in ``folder`` by name alone, newest first; links are not followed."""
    if not folder.is_dir():
        return []
    places = [
        Place(int(match[1]), int(match[2]), Path(entry.path))
        for entry in os.scandir(folder)
        if (match := _NAME.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False)
    ]
    return sorted(places, key=lambda place: (place.attempt, place.step), reverse=True)


def write(
    folder: Path,
    attempt: int,
    step: int,
    about: Mapping[str, Any],
    write_state: Callable[[BinaryIO], object],
    files: Files = DISK,
) -> Place:
    """Write the checkpoint ``<attempt>-<step>``; whatever fails or dies, older ones stay.

    ``write_state`` writes ``state.pt`` from front to end; ``about`` goes into the manifest.

    Raises:
        OSError: a write failed (disk full, quota); nothing of it is left.
    """
    place = Place(attempt, step, folder / f"{attempt}-{step}")
    part = begin(place, files)
    try:
        entry = write_hashed(part / STATE, write_state, files)
        publish(place, about, [entry], files)
    except BaseException:
        files.remove_folder(part)
        raise
    return place


def begin(place: Place, files: Files = DISK) -> Path:
    """An empty folder under a temporary name, for the files of a checkpoint."""
    part, folder = part_of(place), place.folder.parent
    if not folder.exists():
        files.make_folder(folder)
        files.sync_folder(folder.parent)
    files.remove_folder(part)
    files.make_folder(part)
    return part


def part_of(place: Place) -> Path:
    """Where the files of a checkpoint lie until it is whole."""
    return place.folder.with_name(f"{place.folder.name}.tmp")


def publish(
    place: Place, about: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], files: Files = DISK
) -> None:
    """Turn what ``begin`` gave into the checkpoint; every file in it must be durable already.

    ``entries`` are the files' paths, sizes and hashes, as ``write_hashed`` and ``hash_file`` give them.
    """
    part = part_of(place)
    manifest = {"v": VERSION, **about, "attempt": place.attempt, "step": place.step, "files": [*entries]}
    _write_manifest(part / MANIFEST, {**manifest, "created": time.time()}, files)
    files.sync_folder(part)
    if place.folder.exists():  # one that did not verify, or the same step saved twice
        _remove(place.folder, files)
    files.rename(part, place.folder)
    files.sync_folder(place.folder.parent)


def verify(folder: Path) -> dict[str, Any]:
    """Compare every file with the manifest, which is returned.

    Raises:
        CheckpointError: something is missing, cut, changed, or not a plain file.
    """
    manifest = read_manifest(folder)
    for entry in manifest["files"]:
        _verify_file(folder, entry)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest as it stands.

    Raises:
        CheckpointRefused: a newer version of this library wrote it.
        CheckpointError: there is none, or it is not one.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        _refuse_newer(folder, manifest["v"])
        files = manifest["files"]
        usable = files and all(
            isinstance(f["path"], str) and isinstance(f["size"], int) and isinstance(f["sha256"], str)
            for f in files
        )
        usable = usable and isinstance(manifest["step"], int) and isinstance(manifest["attempt"], int)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder.name} has no {MANIFEST}") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{MANIFEST} of {folder.name} cannot be read ({type(error).__name__})"
        ) from error
    if not usable:
        raise CheckpointError(f"{MANIFEST} of {folder.name} lacks its files, step or attempt")
    return dict(manifest)


def _refuse_newer(folder: Path, version: int) -> None:
    if version > VERSION:
        raise CheckpointRefused(
            f"{folder.name} was written by a newer version of this library (format {version}; this one reads "
            f"up to {VERSION}): update it to resume from there"
        )


def prune(folder: Path, keep_last: int, files: Files = DISK) -> None:
    """Remove what crashes left and all but the newest ``keep_last`` checkpoints.

    Call it only once the newest is verified, and while nobody writes here.
    """
    for place in list_places(folder)[keep_last:]:
        _remove(place.folder, files)
    for entry in list(os.scandir(folder)):
        stem, dot, suffix = entry.name.rpartition(".")
        if (
            dot
            and suffix in ("tmp", "trash")
            and _NAME.fullmatch(stem)
            and entry.is_dir(follow_symlinks=False)
        ):
            files.remove_folder(Path(entry.path))


def write_hashed(
    path: Path, write_state: Callable[[BinaryIO], object], files: Files = DISK
) -> dict[str, Any]:
    """A new, durable file; returns its entry in the manifest."""
    with files.create(path) as file:
        hashing = _HashingFile(file)
        write_state(hashing)  # type: ignore[arg-type]  # it has what torch.save calls: write and flush
        files.sync(file)
        # What verifies it must come from the disk; and data sets need the cache more.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"path": path.name, "size": hashing.size, "sha256": hashing.hash.hexdigest()}


def hash_file(path: Path) -> dict[str, Any]:
    """The entry in the manifest of a file that is there."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"path": path.name, "size": size, "sha256": digest.hexdigest()}


class _HashingFile:
    """Hashes what passes through on its way to a file; only ever written from front to end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        size = self._file.write(data)
        self.hash.update(data)
        self.size += size
        return size

    def flush(self) -> None:
        self._file.flush()


def _write_manifest(path: Path, manifest: Mapping[str, Any], files: Files) -> None:
    part = path.with_suffix(".part")
    with files.create(part) as file:
        file.write(json.dumps(manifest).encode())
        files.sync(file)
    files.rename(part, path)


def _verify_file(folder: Path, entry: Mapping[str, Any]) -> None:
    name = entry["path"]
    if name != Path(name).name or name in ("", ".", ".."):
        raise CheckpointError(f"{folder.name} names the file {name!r} outside itself")
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"{folder.name}/{name} cannot be opened ({error.strerror})") from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{folder.name}/{name} is not a plain file")
        if status.st_size != entry["size"]:
            raise CheckpointError(f"{folder.name}/{name} has {status.st_size} bytes, not {entry['size']}")
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{folder.name}/{name} does not have the SHA-256 of its manifest")


def _remove(folder: Path, files: Files) -> None:
    """Rename, then unlink: a crash in between leaves nothing that looks like a checkpoint."""
    trash = folder.with_name(f"{folder.name}.trash")
    files.remove_folder(trash)
    files.rename(folder, trash)
    files.remove_folder(trash)
