"""Versioned JSON records that are whole or absent."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

VERSION = 1
LARGEST_RECORD_BYTES = 4 << 20


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Write ``record`` with the version; a reader, or the next start after a power cut, sees all or nothing.

    Raises:
        OSError: the folder is gone or full; nothing is left under ``path`` that was not there before.
    """
    data = json.dumps({"v": VERSION, **record}, separators=(",", ":")).encode()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)  # POSIX keeps the rename in the folder


def read_record(path: Path) -> dict[str, object] | None:
    """The record at ``path``; None where there is none, or something that is not one of ours.

    Fields and versions newer than ours are kept as they are: a supervisor may outlive an upgrade.
    Links are not followed, because the run can write into some of the folders we read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(LARGEST_RECORD_BYTES + 1)
        record = json.loads(data) if data and len(data) <= LARGEST_RECORD_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    return record if isinstance(record, dict) else None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
