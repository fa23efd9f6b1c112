"""Copying what a script has just written, so that no torn file is ever taken for a checkpoint."""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.store.durable import clone, write_sparsely
from orchestrator.store.layout import JobFolder
from orchestrator.store.manifest import CheckpointFile, Generation, hash_file
from orchestrator.store.writers import (
    CLOCK_TICK_S,
    being_written,
    looks_like_zip,
    open_beneath,
    zip_has_its_checksums,
    zip_is_whole,
)


class NotYet(Exception):
    """A file is being written, is torn, or changed while it was copied."""


@dataclass(slots=True)
class Capture:
    """One try to copy files into ``folder``.

    ``began_s`` is when the attempt that writes now began: an older file that nothing proves whole was left by
    a writer of whom nobody knows how it ended, and is passed over.
    """

    job: JobFolder
    folder: Path
    newest: Generation | None
    began_s: float
    unproven_s: float = 0.0  # the last write to a file that only its writer's life vouches for

    def take(
        self, paths: Sequence[Path], writer_alive: Callable[[], bool], settle_s: float
    ) -> list[CheckpointFile]:
        """The copies; empty where a file is not finished or nothing vouches for it."""
        known = {file.path: file for file in self.newest.files} if self.newest else {}
        try:
            taken = []
            for index, path in enumerate(sorted(set(paths))):
                relative = path.relative_to(self.job.root).as_posix()
                file = self._take(relative, f"{index:04d}", known.get(relative))
                if file is not None:
                    taken.append(file)
            # All at one moment: files of two saves would make no checkpoint.
            for file in taken:
                self._expect_unchanged(file)
            # What is saved during the wait is another checkpoint; these copies stay what they are.
            self._wait_for_writer(writer_alive, settle_s)
        except NotYet:
            return []
        return taken

    def _take(self, relative: str, kept: str, known: CheckpointFile | None) -> CheckpointFile | None:
        with opened(self.job, relative) as fd:
            if fd is None:
                raise NotYet
            status = _at_rest(fd)
            if known is not None and known.seen == seen(status) and self._link(known, kept):
                return replace(known, kept=kept)
            if looks_like_zip(fd) and zip_has_its_checksums(fd):
                return self._copy(fd, relative, kept, status)
            if status.st_ctime <= self.began_s:
                return self._put_back_before(fd, kept, known, status)
            if looks_like_zip(fd) and not zip_is_whole(fd):
                raise NotYet
            self.unproven_s = max(self.unproven_s, status.st_ctime)
            return self._copy(fd, relative, kept, status)

    def _put_back_before(
        self, fd: int, kept: str, known: CheckpointFile | None, status: os.stat_result
    ) -> CheckpointFile | None:
        """A file older than the attempt counts if it is what the newest generation holds: we put it back."""
        same = known is not None and status.st_size == known.size_bytes and hash_file(fd) == known.sha256
        if known is None or not same or not self._link(known, kept):
            return None
        return replace(known, kept=kept, seen=seen(status))

    def _link(self, known: CheckpointFile, kept: str) -> bool:
        if self.newest is None:
            return False
        try:
            os.link(self.newest.folder / known.kept, self.folder / kept, follow_symlinks=False)
        except OSError:  # gone, or a file system without hard links
            return False
        return True

    def _copy(self, fd: int, relative: str, kept: str, status: os.stat_result) -> CheckpointFile:
        copy_fd = os.open(self.folder / kept, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            size, sha256 = _copy_and_hash(fd, copy_fd)
            os.fsync(copy_fd)
        finally:
            os.close(copy_fd)
        after = os.fstat(fd)
        if being_written(fd) or seen(after) != seen(status) or not size == status.st_size == after.st_size:
            raise NotYet
        return CheckpointFile(relative, kept, size, sha256, seen(status))

    def _wait_for_writer(self, writer_alive: Callable[[], bool], settle_s: float) -> None:
        if not self.unproven_s:
            return
        time.sleep(min(settle_s, max(0.0, self.unproven_s + settle_s - time.time())))
        if not writer_alive():
            raise NotYet

    def _expect_unchanged(self, file: CheckpointFile) -> None:
        with opened(self.job, file.path) as fd:
            if fd is None or being_written(fd) or seen(os.fstat(fd)) != file.seen:
                raise NotYet


@contextmanager
def opened(job: JobFolder, relative: str) -> Iterator[int | None]:
    """A file of the job opened for reading; None where it is gone or on the far side of a link."""
    try:
        fd = open_beneath(job.root, relative)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def seen(status: os.stat_result) -> tuple[int, int, int]:
    """What tells one writing of a file from the next."""
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _at_rest(fd: int) -> os.stat_result:
    """The state of a file that nobody writes and whose times the next write will change."""
    status = os.fstat(fd)
    if time.time() - status.st_ctime < CLOCK_TICK_S:
        # A second write within one tick of the clock would leave no trace in the times.
        time.sleep(CLOCK_TICK_S)
    if being_written(fd) or seen(os.fstat(fd)) != seen(status):
        raise NotYet
    return status


def _copy_and_hash(fd: int, copy_fd: int) -> tuple[int, str]:
    status, disk = os.fstat(fd), os.fstatvfs(copy_fd)
    room = disk.f_bavail * disk.f_frsize
    if status.st_size - status.st_blocks * 512 > room:  # holes: it would be read for hours
        raise NotYet
    if clone(fd, copy_fd):
        return os.fstat(copy_fd).st_size, hash_file(copy_fd)
    if status.st_size > room:  # found out now, and not when the disk is full for everybody
        raise OSError(errno.ENOSPC, "there is no room for a copy of the file")
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(fd, 1 << 20, size):
        digest.update(chunk)
        write_sparsely(copy_fd, chunk)
        size += len(chunk)
    return size, digest.hexdigest()
