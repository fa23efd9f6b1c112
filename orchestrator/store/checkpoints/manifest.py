"""Manifests of kept checkpoints (``manifest.json``).  A checkpoint without a valid manifest does not exist."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import orjson

from orchestrator.exceptions import OrchestratorError
from orchestrator.store.files.untrusted import open_plain

VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES = 16 << 20
READ_BYTES = 1 << 20
CheckpointSource = Literal["script", "library"]


class NotVerified(OrchestratorError):
    """A checkpoint does not match its manifest; the sentence names the file."""

    code = "not_verified"
    status = 409


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file: its path for the run (relative to the job's folder) and its copy (relative to the generation's)."""

    path: str
    kept: str
    size_bytes: int
    sha256: str
    # Of the original when it was copied: (inode, mtime ns, ctime ns).  Equal values mean equal bytes.
    seen: tuple[int, int, int] | None = None
    companion: bool = False  # a loose file beside the checkpoint, restored with it


@dataclass(frozen=True, slots=True)
class Generation:
    """A checkpoint that Berth can restore, or point a run to."""

    folder: Path
    source: CheckpointSource
    number: int  # of a script's generation; 0 for the library's
    attempt: int
    step: int | None
    created_s: float
    files: tuple[CheckpointFile, ...]
    previous: int | None = None
    world_size: int | None = None
    strategy: str | None = None
    resume: str | None = None  # path given to the script, relative to the job's folder; None: its newest file

    @property
    def own_files(self) -> tuple[CheckpointFile, ...]:
        """The checkpoint's own files, without companions."""
        return tuple(file for file in self.files if not file.companion)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def name(self) -> str:
        """The checkpoint's name in events and pages."""
        return f"generation {self.number}" if self.source == "script" else f"checkpoint {self.folder.name}"


def read_manifest(folder: Path, source: CheckpointSource) -> Generation:
    """The generation in a folder.

    Raises:
        NotVerified: the manifest is missing or garbled; the sentence says which.
    """
    try:
        fd = open_plain(folder / MANIFEST)
    except OSError as error:
        raise NotVerified(f"its manifest cannot be read ({error.strerror})") from error
    with os.fdopen(fd, "rb") as file:
        data = file.read(MANIFEST_BYTES + 1)
    try:
        return _generation(folder, source, orjson.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotVerified(f"its manifest is garbled ({type(error).__name__})") from error


def _generation(folder: Path, source: CheckpointSource, record: Mapping[str, Any]) -> Generation:
    if int(record["v"]) < 1:
        raise ValueError(record["v"])
    if source == "library":
        prefix = f"checkpoints/{folder.name}/"
        files = tuple(
            _file(prefix + entry["path"], entry["path"], entry.get("size", entry.get("size_bytes")), entry)
            for entry in record["files"]
        )
    else:
        files = tuple(_file(entry["path"], entry["kept"], entry["size"], entry) for entry in record["files"])
    if not files:
        raise ValueError("no files")
    step = record["step"]
    return Generation(
        folder=folder,
        source=source,
        number=int(record["generation"]) if source == "script" else 0,
        attempt=int(record["attempt"]),
        step=None if step is None else int(step),
        created_s=seconds(record["created"]),
        files=files,
        previous=record.get("previous") if source == "script" else None,
        world_size=record.get("world_size"),
        strategy=record.get("strategy"),
        resume=_inner_path(record.get("resume")) if source == "script" else None,
    )


def _inner_path(path: str | None) -> str | None:
    if path is not None and (path.startswith("/") or ".." in PurePosixPath(path).parts):
        raise ValueError(path)
    return path


def _file(path: str, kept: str, size: Any, entry: Mapping[str, Any]) -> CheckpointFile:
    for name in (path, kept):
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise ValueError(name)
    seen = entry.get("seen")
    return CheckpointFile(
        path=path,
        kept=kept,
        size_bytes=int(size),
        sha256=str(entry["sha256"]),
        seen=None if seen is None else (int(seen[0]), int(seen[1]), int(seen[2])),
        companion=entry.get("companion") is True,
    )


def seconds(created: object) -> float:
    """Seconds since 1970 from a number or an RFC 3339 time."""
    if isinstance(created, int | float):
        return float(created)
    return datetime.fromisoformat(str(created).replace("Z", "+00:00")).timestamp()


def manifest_bytes(generation: Generation, job: str) -> bytes:
    """The manifest of a script's generation."""
    record = {
        "v": VERSION,
        "generation": generation.number,
        "job": job,
        "attempt": generation.attempt,
        "step": generation.step,
        "created": generation.created_s,
        "source": generation.source,
        "previous": generation.previous,
        "resume": generation.resume,
        "files": [
            {
                "path": file.path,
                "kept": file.kept,
                "size": file.size_bytes,
                "sha256": file.sha256,
                "seen": file.seen,
                "companion": file.companion,
            }
            for file in generation.files
        ],
    }
    return orjson.dumps(record, option=orjson.OPT_INDENT_2)


def verify_files(generation: Generation) -> None:
    """Compare every file with the manifest, by size first and then by hash.

    Raises:
        NotVerified: the sentence names the first file that differs.
    """
    for file in generation.files:
        fd = _open_kept(generation, file)
        size = os.fstat(fd).st_size
        os.close(fd)
        if size != file.size_bytes:
            raise NotVerified(f"{file.kept} has {size:,} bytes instead of {file.size_bytes:,}")
    for file in generation.files:
        fd = _open_kept(generation, file)
        try:
            if hash_file(fd) != file.sha256:
                raise NotVerified(f"{file.kept} has other bytes than when it was written")
        finally:
            os.close(fd)


def _open_kept(generation: Generation, file: CheckpointFile) -> int:
    path = generation.folder
    for part in PurePosixPath(file.kept).parts[:-1]:
        path = path / part
        if path.is_symlink():
            raise NotVerified(f"{part} is a link; links are not followed")
    try:
        return open_plain(generation.folder / file.kept)
    except OSError as error:
        raise NotVerified(f"{file.kept} cannot be read ({error.strerror})") from error


def hash_file(fd: int, also: Callable[[bytes], object] | None = None) -> str:
    """SHA-256 of an open file from its start; passes every chunk to ``also``."""
    digest, offset = hashlib.sha256(), 0
    while chunk := os.pread(fd, READ_BYTES, offset):
        digest.update(chunk)
        if also is not None:
            also(chunk)
        offset += len(chunk)
    return digest.hexdigest()
