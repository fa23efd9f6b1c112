"""Checkpoint folders on disk: written atomically, listed, verified, pruned.

A checkpoint is the folder ``<attempt>-<step>/`` with ``state.pt`` and ``manifest.json``:
``{"v": 1, "job", "attempt", "step", "world_size", "strategy", "files": [{"path", "size",
"sha256"}], "created"}``, ``created`` in seconds of wall time; a sharded checkpoint has further files.
Folders that end in ``.tmp`` or ``.trash`` are remains of a crash.  Standard library only; nothing here
unpickles.
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
from typing import BinaryIO, TypedDict, cast

from training.checkpoint.files import DISK, Files

MANIFEST = "manifest.json"
STATE = "state.pt"
INDEX = ".metadata"  # of a sharded checkpoint; DCP chooses the name
VERSION = 1
_NAME = re.compile(r"(\d+)-(\d+)")
_CHUNK_BYTES = 1 << 20


class CheckpointError(Exception):
    """A checkpoint cannot be written, or does not match its manifest."""


class CheckpointRefused(CheckpointError):
    """A checkpoint seems intact, but this program cannot or must not read it.

    Unlike for damage, an older checkpoint is no substitute: the progress since then would be lost.
    """


class About(TypedDict):
    """What a manifest says of the run that wrote it."""

    job: str | None
    world_size: int
    strategy: str


class ManifestFile(TypedDict):
    """A file of a checkpoint; its path is relative to the folder."""

    path: str
    size: int
    sha256: str


class Manifest(About):
    """The content of ``manifest.json``."""

    v: int
    attempt: int
    step: int
    files: list[ManifestFile]
    created: float


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's folder, not yet verified."""

    attempt: int
    step: int
    folder: Path


def list_places(folder: Path) -> list[Place]:
    """List the checkpoints in ``folder`` by name, newest first, without following links."""
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
    about: Mapping[str, object],
    write_state: Callable[[BinaryIO], object],
    files: Files = DISK,
) -> Place:
    """Write the checkpoint ``<attempt>-<step>``; older ones survive any failure or crash.

    ``write_state`` writes ``state.pt`` sequentially; ``about`` goes into the manifest.

    Raises:
        OSError: a write failed (disk full, quota); the unfinished checkpoint is removed.
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
    """Make an empty folder with a temporary name, for the files of a checkpoint."""
    part, folder = part_of(place), place.folder.parent
    if not folder.exists():
        files.make_folder(folder)
        files.sync_folder(folder.parent)
    files.remove_folder(part)
    files.make_folder(part)
    return part


def part_of(place: Place) -> Path:
    """Return the temporary folder of an unfinished checkpoint."""
    return place.folder.with_name(f"{place.folder.name}.tmp")


def publish(
    place: Place, about: Mapping[str, object], entries: Sequence[ManifestFile], files: Files = DISK
) -> None:
    """Turn the folder of ``begin`` into the checkpoint; every file in it must be durable already.

    ``entries`` are the files' paths, sizes and hashes from ``write_hashed`` and ``hash_file``.
    """
    part = part_of(place)
    manifest = {"v": VERSION, **about, "attempt": place.attempt, "step": place.step, "files": [*entries]}
    _write_manifest(part / MANIFEST, {**manifest, "created": time.time()}, files)
    files.sync_folder(part)
    if place.folder.exists():  # damaged, or the same step saved twice
        _remove(place.folder, files)
    files.rename(part, place.folder)
    files.sync_folder(place.folder.parent)


def verify(folder: Path) -> Manifest:
    """Compare every file with the manifest; return the manifest.

    Raises:
        CheckpointError: a file is missing, truncated, changed, or not a plain file.
    """
    manifest = read_manifest(folder)
    for entry in manifest["files"]:
        _verify_file(folder, entry)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest, without comparing files.

    Raises:
        CheckpointRefused: a newer version of this library wrote it.
        CheckpointError: there is no manifest, or it cannot be used.
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
    return cast(Manifest, manifest)


def _refuse_newer(folder: Path, version: int) -> None:
    if version > VERSION:
        raise CheckpointRefused(
            f"{folder.name} was written by a newer version of this library (format {version}; this one reads "
            f"up to {VERSION}): update it to resume from there"
        )


def prune(folder: Path, keep_last: int, files: Files = DISK) -> None:
    """Remove remains of crashes, and all but the newest ``keep_last`` checkpoints.

    Call this only once the newest is verified, and while nobody writes here.
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


def write_hashed(path: Path, write_state: Callable[[BinaryIO], object], files: Files = DISK) -> ManifestFile:
    """Write a new, durable file; return its entry for the manifest."""
    with files.create(path) as file:
        hashing = _HashingFile(file)
        write_state(hashing)  # type: ignore[arg-type]  # it has what torch.save calls: write and flush
        files.sync(file)
        # Verification must read from the disk, and datasets need the page cache more.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"path": path.name, "size": hashing.size, "sha256": hashing.hash.hexdigest()}


def hash_file(path: Path) -> ManifestFile:
    """Return the manifest's entry of an existing file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"path": path.name, "size": size, "sha256": digest.hexdigest()}


class _HashingFile:
    """Hashes data on its way to a file; supports only sequential writes."""

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


def _write_manifest(path: Path, manifest: Mapping[str, object], files: Files) -> None:
    part = path.with_suffix(".part")
    with files.create(part) as file:
        file.write(json.dumps(manifest).encode())
        files.sync(file)
    files.rename(part, path)


def _verify_file(folder: Path, entry: ManifestFile) -> None:
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
    """Rename, then delete: a crash in between leaves nothing that looks like a checkpoint."""
    trash = folder.with_name(f"{folder.name}.trash")
    files.remove_folder(trash)
    files.rename(folder, trash)
    files.remove_folder(trash)
