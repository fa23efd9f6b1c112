"""Copying what a script has just written, so that no torn file is ever taken for a checkpoint."""

import errno
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.store.durable import clone, write_sparsely
from orchestrator.store.layout import JobFolder
from orchestrator.store.manifest import CheckpointFile, Generation, hash_file
from orchestrator.store.saves import Signature
from orchestrator.store.writers import CLOCK_TICK_S, looks_like_zip, open_beneath, proves_itself, zip_is_whole
from orchestrator.supervisor.leases import being_written


class NotYet(Exception):
    """A file is being written, is torn, or changed while it was copied."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The files of one checkpoint, and what it takes for them to be one.

    ``beside`` lies loose beside it and may belong to it.  So may ``companions``, but one of them that is open or
    not proven whole is left out.
    """

    paths: Sequence[Path]
    beside: Sequence[Path] = ()
    companions: Sequence[Path] = ()
    resume: str | None = None
    # A folder is whole once nothing in it has changed for a while.  If its writer was killed before, only a
    # framework's last file can tell.
    is_folder: bool = False
    has_recipe: bool = False
    is_complete: Callable[[], bool] = lambda: True
    # Seen closed by the supervisor, which then saw the writer live on: path -> signature.
    vouched: Mapping[str, Signature] = field(default_factory=dict)


@dataclass(slots=True)
class Capture:
    """One try to copy files into ``folder``.

    ``began_s`` is when the attempt that writes now began: an older file that nothing proves whole was left by
    a writer of whom nobody knows how it ended, and is passed over.
    """

    job: JobFolder
    folder: Path
    kept: Sequence[Generation]  # newest first
    began_s: float
    unproven_s: float = 0.0  # the last write to a file that only its writer's life vouches for
    is_fresh: bool = False  # something in it was written since then
    left_out: list[str] = field(default_factory=list)
    refused: str = ""  # the file because of which nothing was taken
    _optional: set[str] = field(default_factory=set)
    _unproven: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)  # a generation has them

    def take(self, wanted: Wanted, writer_alive: Callable[[], bool], settle_s: float) -> list[CheckpointFile]:
        """The copies; empty where a file is not finished or nothing vouches for it."""
        try:
            taken = self._take_all(wanted)
            if not any(not file.companion for file in taken):
                return []
            # All at one moment: files of two saves would make no checkpoint.
            taken = [file for file in taken if self._is_unchanged(file)]
            # What is saved during the wait is another checkpoint; these copies stay what they are.
            return self._settle(taken, wanted, writer_alive, settle_s)
        except NotYet:
            return []

    def _take_all(self, wanted: Wanted) -> list[CheckpointFile]:
        known: dict[str, list[tuple[Generation, CheckpointFile]]] = defaultdict(list)
        for generation in self.kept:
            for each in generation.files:
                known[each.path].append((generation, each))
        own = set(wanted.paths)
        self._optional = {self._relative(path) for path in wanted.companions}
        taken = []
        for index, path in enumerate(sorted({*wanted.paths, *wanted.beside, *wanted.companions})):
            relative, kept = self._relative(path), f"{index:04d}"
            try:
                file = self._take(relative, kept, known[relative], wanted)
            except NotYet:
                self._leave_out(relative)
                (self.folder / kept).unlink(missing_ok=True)
                continue
            if file is not None:
                taken.append(replace(file, companion=path not in own))
            elif wanted.is_folder and path in own:
                self.refused = relative  # without one of its files a folder is no checkpoint
                raise NotYet
        return taken

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.job.root).as_posix()

    def _leave_out(self, relative: str) -> None:
        """Go on without a file that is not finished.

        Raises:
            NotYet: it is a part of the checkpoint.
        """
        if relative not in self._optional:
            self.refused = relative
            raise NotYet
        self.left_out.append(relative)

    def _take(
        self, relative: str, kept: str, known: list[tuple[Generation, CheckpointFile]], wanted: Wanted
    ) -> CheckpointFile | None:
        with opened(self.job, relative) as fd:
            if fd is None:
                raise NotYet
            status = _at_rest(fd)
            self.is_fresh = self.is_fresh or status.st_ctime > self.began_s
            for generation, file in known:
                if file.seen == seen(status) and self._link(generation, file, kept):
                    self._known.add(relative)
                    return replace(file, kept=kept)
            if proves_itself(fd) or wanted.vouched.get(relative) == signature_of(status):
                return self._copy(fd, relative, kept, status)
            if status.st_ctime <= self.began_s:
                return self._put_back_before(fd, kept, known, status)
            if looks_like_zip(fd) and not zip_is_whole(fd):
                raise NotYet
            self._unproven.add(relative)
            self.unproven_s = max(self.unproven_s, status.st_ctime)
            return self._copy(fd, relative, kept, status)

    def _put_back_before(
        self, fd: int, kept: str, known: list[tuple[Generation, CheckpointFile]], status: os.stat_result
    ) -> CheckpointFile | None:
        """A file older than the attempt counts if it is what a generation holds: we put it back."""
        same_size = [(generation, file) for generation, file in known if file.size_bytes == status.st_size]
        digest = hash_file(fd) if same_size else ""
        for generation, file in same_size:
            if file.sha256 == digest and self._link(generation, file, kept):
                self._known.add(file.path)
                return replace(file, kept=kept, seen=seen(status))
        return None

    def _link(self, generation: Generation, file: CheckpointFile, kept: str) -> bool:
        try:
            os.link(generation.folder / file.kept, self.folder / kept, follow_symlinks=False)
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

    def _settle(
        self, taken: list[CheckpointFile], wanted: Wanted, writer_alive: Callable[[], bool], settle_s: float
    ) -> list[CheckpointFile]:
        """Wait until the writer has lived on for a while after the files that do not prove themselves."""
        written_s = self.unproven_s
        if wanted.is_folder:
            written_s = max(
                (file.seen[2] / 1e9 for file in taken if file.seen and not file.companion), default=0
            )
        if not written_s:
            return taken
        time.sleep(min(settle_s, max(0.0, written_s + settle_s - time.time())))
        if not wanted.is_complete():
            raise NotYet
        if writer_alive():
            return taken
        for each in taken:
            if each.path in self._unproven:
                self._leave_out(each.path)
        if wanted.is_folder and not wanted.has_recipe:
            self._expect_quiet(taken, wanted)
        return [file for file in taken if file.path not in self._unproven]

    def _expect_quiet(self, taken: list[CheckpointFile], wanted: Wanted) -> None:
        """Of a folder that no framework ends with a certain file, each must have been seen while its writer lived on."""
        for file in taken:
            if not file.companion and file.path not in wanted.vouched and file.path not in self._known:
                self.refused = file.path
                raise NotYet

    def _is_unchanged(self, file: CheckpointFile) -> bool:
        with opened(self.job, file.path) as fd:
            if fd is not None and not being_written(fd) and seen(os.fstat(fd)) == file.seen:
                return True
        self._leave_out(file.path)
        return False


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


def signature_of(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


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
