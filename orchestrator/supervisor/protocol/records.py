"""Reads and writes an attempt's files: versioned JSON records, the heartbeat, tails of logs, the supervisor's own log."""

import json
import os
import stat
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from orchestrator.supervisor.protocol.folder import AttemptFolder

VERSION = 1
LARGEST_RECORD_BYTES = 4 << 20

Record: TypeAlias = dict[str, object]  # one JSON object of the protocol; who reads it checks each field


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Write ``record`` with its version, atomically and durably.

    Raises:
        OSError: the folder is gone or full; ``path`` is unchanged.
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
    _sync_folder(path.parent)  # POSIX stores the rename in the folder


def read_record(path: Path) -> Record | None:
    """The record at ``path``; None if it is missing or not one of ours.

    Keeps unknown fields and newer versions: a supervisor may outlive an upgrade.  Follows no links, because the run
    can write to some of these folders.
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
    except OSError:
        return None
    finally:
        os.close(fd)
    return parse_record(data)


def parse_record(data: bytes) -> Record | None:
    """The record that these bytes are; None if they are not one of ours."""
    try:
        record = json.loads(data) if data and len(data) <= LARGEST_RECORD_BYTES else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_tail(path: Path, limit_bytes: int) -> str:
    """The last bytes of a file as text; empty if it is missing or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, limit_bytes, max(0, size - limit_bytes)).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def log_exception() -> None:
    """Print the exception that is being handled to the supervisor's log, unless the log's disk is full."""
    with suppress(OSError):
        traceback.print_exc()


class Heartbeat:
    """Writes monotonic nanoseconds once a second, in place and without fsync."""

    def __init__(self, folder: AttemptFolder) -> None:
        self._fd = os.open(folder.heartbeat, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def beat(self) -> None:
        os.pwrite(self._fd, b"%020d\n" % time.monotonic_ns(), 0)


def heartbeat_age_s(folder: AttemptFolder) -> float | None:
    """Seconds since the last heartbeat, on this boot's clock; None without one."""
    try:
        beat_ns = int(folder.heartbeat.read_bytes())
    except (OSError, ValueError):
        return None
    return max(0.0, (time.monotonic_ns() - beat_ns) / 1e9)
