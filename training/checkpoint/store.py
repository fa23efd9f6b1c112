"""Checkpoint folders on disk: written whole or not at all, listed, verified, pruned.

A checkpoint is the folder ``<attempt>-<step>/`` with ``state.pt`` and ``manifest.json``:
``{"v": 1, "job", "attempt", "step", "world_size", "strategy", "files": [{"path", "size",
"sha256"}], "created"}``, ``created`` in seconds of wall time.  A folder that ends in ``.tmp``
or ``.trash`` is what a crash left.  Standard library only; nothing here unpickles.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MANIFEST = "manifest.json"
STATE = "state.pt"
VERSION = 1
_NAME = re.compile(r"(\d+)-(\d+)")
_CHUNK_BYTES = 1 << 20


class CheckpointError(Exception):
    """A checkpoint cannot be written or is not what its manifest says."""


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
    folder: Path, attempt: int, step: int, about: Mapping[str, Any], write_state: Callable[[BinaryIO], object]
) -> Place:
    """Write the checkpoint ``<attempt>-<step>``; whatever fails or dies, older ones stay.

    ``write_state`` writes ``state.pt`` from front to end; ``about`` goes into the manifest.

    Raises:
        OSError: a write failed (disk full, quota); nothing of it is left.
    """
    part = folder / f"{attempt}-{step}.tmp"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        entry = _write_hashed(part / STATE, write_state)
        manifest = {"v": VERSION, **about, "attempt": attempt, "step": step, "files": [entry]}
        _write_manifest(part / MANIFEST, {**manifest, "created": time.time()})
        _sync_folder(part)
        place = Place(attempt, step, folder / f"{attempt}-{step}")
        if place.folder.exists():  # one that did not verify, or the same step saved twice
            _remove(place.folder)
        part.rename(place.folder)
        _sync_folder(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return place


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
        CheckpointError: there is none, or it is not one.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
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


def prune(folder: Path, keep_last: int) -> None:
    """Remove what crashes left and all but the newest ``keep_last`` checkpoints.

    Call it only once the newest is verified, and while nobody writes here.
    """
    for place in list_places(folder)[keep_last:]:
        _remove(place.folder)
    for entry in list(os.scandir(folder)):
        stem, dot, suffix = entry.name.rpartition(".")
        if (
            dot
            and suffix in ("tmp", "trash")
            and _NAME.fullmatch(stem)
            and entry.is_dir(follow_symlinks=False)
        ):
            shutil.rmtree(entry.path, ignore_errors=True)


def _write_hashed(path: Path, write_state: Callable[[BinaryIO], object]) -> dict[str, Any]:
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        write_state(hashing)  # type: ignore[arg-type]  # it has what torch.save calls: write and flush
        file.flush()
        os.fsync(file.fileno())
        # What verifies it must come from the disk; and data sets need the cache more.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"path": path.name, "size": hashing.size, "sha256": hashing.hash.hexdigest()}


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


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


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


def _remove(folder: Path) -> None:
    """Rename, then unlink: a crash in between leaves nothing that looks like a checkpoint."""
    trash = folder.with_name(f"{folder.name}.trash")
    shutil.rmtree(trash, ignore_errors=True)
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
