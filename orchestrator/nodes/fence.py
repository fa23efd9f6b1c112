"""Keeps late files of an older attempt out of a job's folders once a newer attempt is being prepared."""

import errno
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestrator.nodes.trees import Arrivals, Chunk, Entry
from orchestrator.store.layout import JobFolder

FENCE = ".fence"  # a lock beside the attempts' folders


def raise_fence(folder: JobFolder) -> None:
    """Wait until no older attempt writes; the folder of the new one, which must be there, lets none begin again."""
    fd = _open(folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


class FencedArrivals(Arrivals):
    """``Arrivals`` of one attempt; refuses everything with ESTALE once there is a newer one."""

    def __init__(self, folder: JobFolder, attempt: int) -> None:
        super().__init__(folder.root)
        self._folder = folder
        self._attempt = attempt

    def take(self, chunk: Chunk) -> bool:
        with self._newest():
            return super().take(chunk)

    def append(self, chunk: Chunk) -> None:
        with self._newest():
            super().append(chunk)

    def make(self, entries: Mapping[str, Entry]) -> None:
        with self._newest():
            super().make(entries)

    def remove(self, paths: Collection[str]) -> None:
        with self._newest():
            super().remove(paths)

    @contextmanager
    def _newest(self) -> Iterator[None]:
        fd = _open(self._folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _newest_attempt(self._folder) > self._attempt:
                raise OSError(errno.ESTALE, "a newer attempt of the job has begun")
            yield
        finally:
            os.close(fd)


def _open(folder: JobFolder) -> int:
    return os.open(_attempts(folder) / FENCE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _newest_attempt(folder: JobFolder) -> int:
    names = [path.name for path in _attempts(folder).iterdir()]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _attempts(folder: JobFolder) -> Path:
    return folder.root / "attempts"
