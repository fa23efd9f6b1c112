"""Copies files that a script has just written, without ever taking a torn file for a checkpoint."""

import errno
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.store.checkpoints.file_formats import (
    CLOCK_TICK_S,
    looks_like_zip,
    proves_itself,
    zip_is_whole,
)
from orchestrator.store.checkpoints.manifest import CheckpointFile, Generation, hash_file
from orchestrator.store.checkpoints.saves import Signature
from orchestrator.store.files.durable import clone, write_sparsely
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.linux.kernel import being_written


class NotYet(Exception):
    """A file is being written, is torn, or changed during its copy."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The files of one checkpoint, and the conditions under which they are complete.

    Loose files ``beside`` may belong to the checkpoint.  So may ``companions``, but a companion that is open or not
    proven complete is left out.
    """

    paths: Sequence[Path]
    beside: Sequence[Path] = ()
    companions: Sequence[Path] = ()
    resume: str | None = None
    # A folder is complete once nothing in it has changed for a while.  If its writer was killed earlier, only a
    # framework's last file can prove it.
    is_folder: bool = False
    has_recipe: bool = False
    is_complete: Callable[[], bool] = lambda: True
    # Files that must still be as they were when somebody found them to be of one save: path -> signature.
    judged: Mapping[str, Signature] = field(default_factory=dict)
    # Files that the supervisor saw closed while their writer lived on: path -> signature.
    vouched: Mapping[str, Signature] = field(default_factory=dict)


@dataclass(slots=True)
class Capture:
    """One attempt to copy files into ``folder``.

    ``began_s`` is the start of the attempt that writes now.  An older file was left by a writer with an unknown end;
    it is skipped unless its format proves it complete.
    """

    job: JobFolder
    folder: Path
    kept: Sequence[Generation]  # newest first
    began_s: float
    unproven_s: float = 0.0  # last write to a file that is proven only by its writer living on
    is_fresh: bool = False  # some file was written since ``began_s``
    left_out: list[str] = field(default_factory=list)
    refused: str = ""  # the file that prevented the copy
    _optional: set[str] = field(default_factory=set)
    _unproven: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)  # in a generation already

    def take(self, wanted: Wanted, writer_alive: Callable[[], bool], settle_s: float) -> list[CheckpointFile]:
        """Copy the files; empty if one is unfinished or unproven."""
        try:
            taken = self._take_all(wanted)
            if not any(not file.companion for file in taken):
                return []
            # All must be unchanged at one moment: files of two saves do not make a checkpoint.
            taken = [file for file in taken if self._is_unchanged(file)]
            # A save during the wait makes another checkpoint; these copies do not change.
            return self._settle(taken, wanted, writer_alive, settle_s)
        except NotYet:
            return []

    def _take_all(self, wanted: Wanted) -> list[CheckpointFile]:
        copies: dict[str, list[tuple[Generation, CheckpointFile]]] = defaultdict(list)
        for generation in self.kept:
            for file in generation.files:
                copies[file.path].append((generation, file))
        own = set(wanted.paths)
        self._optional = {self._relative(path) for path in wanted.companions}
        taken = []
        for index, path in enumerate(sorted({*wanted.paths, *wanted.beside, *wanted.companions})):
            relative, copy_name = self._relative(path), f"{index:04d}"
            try:
                taken_file = self._take(relative, copy_name, copies[relative], wanted)
            except NotYet:
                self._leave_out(relative)
                (self.folder / copy_name).unlink(missing_ok=True)
                continue
            if taken_file is not None:
                taken.append(replace(taken_file, companion=path not in own))
            elif wanted.is_folder and path in own:
                self.refused = relative  # a folder without one of its files is not a checkpoint
                raise NotYet
        return taken

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.job.root).as_posix()

    def _leave_out(self, relative: str) -> None:
        """Skip a file that is not finished.

        Raises:
            NotYet: the file is a part of the checkpoint.
        """
        if relative not in self._optional:
            self.refused = relative
            raise NotYet
        self.left_out.append(relative)

    def _take(
        self, relative: str, copy_name: str, copies: list[tuple[Generation, CheckpointFile]], wanted: Wanted
    ) -> CheckpointFile | None:
        with opened(self.job, relative) as fd:
            if fd is None:
                raise NotYet
            status = _at_rest(fd)
            if wanted.judged.get(relative, signature_of(status)) != signature_of(status):
                raise NotYet
            self.is_fresh = self.is_fresh or status.st_ctime > self.began_s
            for generation, file in copies:
                if file.seen == seen(status) and self._link(generation, file, copy_name):
                    self._known.add(relative)
                    return replace(file, kept=copy_name)
            if proves_itself(fd) or wanted.vouched.get(relative) == signature_of(status):
                return self._copy(fd, relative, copy_name, status)
            if status.st_ctime <= self.began_s:
                return self._take_restored(fd, copy_name, copies, status)
            if looks_like_zip(fd) and not zip_is_whole(fd):
                raise NotYet
            self._unproven.add(relative)
            self.unproven_s = max(self.unproven_s, status.st_ctime)
            return self._copy(fd, relative, copy_name, status)

    def _take_restored(
        self, fd: int, copy_name: str, copies: list[tuple[Generation, CheckpointFile]], status: os.stat_result
    ) -> CheckpointFile | None:
        """A file older than the attempt counts if a generation has the same contents: it was restored."""
        same_size = [(generation, file) for generation, file in copies if file.size_bytes == status.st_size]
        digest = hash_file(fd) if same_size else ""
        for generation, file in same_size:
            if file.sha256 == digest and self._link(generation, file, copy_name):
                self._known.add(file.path)
                return replace(file, kept=copy_name, seen=seen(status))
        return None

    def _link(self, generation: Generation, file: CheckpointFile, copy_name: str) -> bool:
        try:
            os.link(generation.folder / file.kept, self.folder / copy_name, follow_symlinks=False)
        except OSError:  # the copy is gone, or the file system has no hard links
            return False
        return True

    def _copy(self, fd: int, relative: str, copy_name: str, status: os.stat_result) -> CheckpointFile:
        copy_fd = os.open(self.folder / copy_name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            size, sha256 = _copy_and_hash(fd, copy_fd)
            os.fsync(copy_fd)
        finally:
            os.close(copy_fd)
        after = os.fstat(fd)
        if being_written(fd) or seen(after) != seen(status) or not size == status.st_size == after.st_size:
            raise NotYet
        return CheckpointFile(relative, copy_name, size, sha256, seen(status))

    def _settle(
        self, taken: list[CheckpointFile], wanted: Wanted, writer_alive: Callable[[], bool], settle_s: float
    ) -> list[CheckpointFile]:
        """Wait until the writer has lived for ``settle_s`` after the last unproven write."""
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
        for file in taken:
            if file.path in self._unproven:
                self._leave_out(file.path)
        if wanted.is_folder and not wanted.has_recipe:
            self._refuse_unproven(taken, wanted)
        return [file for file in taken if file.path not in self._unproven]

    def _refuse_unproven(self, taken: list[CheckpointFile], wanted: Wanted) -> None:
        """Refuse a folder without a framework's last file if any file is neither vouched for nor known.

        Raises:
            NotYet: such a file is among them.
        """
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
    """A file of the job, open for reading; None if it is gone or behind a link."""
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
    """What distinguishes two writes of a file: inode, mtime, ctime."""
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def signature_of(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _at_rest(fd: int) -> os.stat_result:
    """The status of a file that nobody is writing, taken so that the next write will change its times.

    Raises:
        NotYet: the file is being written.
    """
    status = os.fstat(fd)
    if time.time() - status.st_ctime < CLOCK_TICK_S:
        # A second write within the same clock tick would not change the times.
        time.sleep(CLOCK_TICK_S)
    if being_written(fd) or seen(os.fstat(fd)) != seen(status):
        raise NotYet
    return status


def _copy_and_hash(fd: int, copy_fd: int) -> tuple[int, str]:
    status, disk = os.fstat(fd), os.fstatvfs(copy_fd)
    room = disk.f_bavail * disk.f_frsize
    if status.st_size - status.st_blocks * 512 > room:  # mostly holes: reading it would take hours
        raise NotYet
    if clone(fd, copy_fd):
        return os.fstat(copy_fd).st_size, hash_file(copy_fd)
    if status.st_size > room:  # refused now, before the copy fills the disk for everybody
        raise OSError(errno.ENOSPC, "there is no room for a copy of the file")
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(fd, 1 << 20, size):
        digest.update(chunk)
        write_sparsely(copy_fd, chunk)
        size += len(chunk)
    return size, digest.hexdigest()
