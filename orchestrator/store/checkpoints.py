"""Generations: the checkpoints that Berth keeps of unchanged scripts, beside those our Checkpointer writes.

A generation exists if and only if its folder has its final name and its manifest verifies: the copies and the
manifest are made durable under a temporary name, and the rename of the folder comes last.
"""

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from orchestrator.store.durable import clone, discard_folder, sync_folder, write_all
from orchestrator.store.layout import JobFolder
from orchestrator.store.manifest import (
    MANIFEST,
    CheckpointFile,
    Generation,
    NotVerified,
    Source,
    hash_file,
    manifest_bytes,
    read_manifest,
    verify_files,
)
from orchestrator.store.writers import (
    CLOCK_TICK_S,
    being_written,
    looks_like_zip,
    open_beneath,
    open_folder_beneath,
    zip_has_its_checksums,
    zip_is_whole,
)

SETTLE_S = 2.0
LIBRARY_NAME = re.compile(r"(\d+)-(\d+)")
RESTORING = ".berth-part"


@dataclass(frozen=True, slots=True)
class Skip:
    """A generation that was passed over, and why."""

    name: str
    folder: Path
    reason: str
    attempt: int | None = None
    step: int | None = None


class GenerationStore:
    """The checkpoints of one job; only one process captures, puts back or prunes at a time (the agent)."""

    def __init__(self, job: JobFolder) -> None:
        self._job = job

    def capture(
        self,
        paths: Sequence[Path],
        attempt: int,
        step: int | None,
        writer_alive: Callable[[], bool],
        *,
        settle_s: float = SETTLE_S,
    ) -> Generation | None:
        """Keep copies of finished files as one generation; None where any of them is being written or is torn.

        Files with the same contents as the newest generation's (put back, or saved again) make no new one:
        that one is returned.

        Args:
            paths: regular files below the job's folder.  Those that the newest generation has already,
                unchanged, are shared with it and not copied: hand in all files of a checkpoint.
            writer_alive: whether the attempt that wrote them still runs, or ended cleanly.  A process that is
                killed closes its files too; unless a zip's checksums prove a file whole, the writer must
                have lived for ``settle_s`` after the last write.  So this may wait that long.
        """
        newest = next(iter(self._scripts_newest_first()), None)
        number = self._next_number()
        folder = self._job.generations / f".{number}.tmp"
        discard_folder(folder)
        folder.mkdir(parents=True)
        try:
            files = self._take_all(paths, folder, newest, writer_alive, settle_s)
            if not files:
                return None
            if newest is not None and _contents(files) == _contents(newest.files):
                return newest
            generation = Generation(
                folder=self._job.generations / str(number),
                source="script",
                number=number,
                attempt=attempt,
                step=step,
                created_s=time.time(),
                files=tuple(files),
                previous=newest.number if newest else None,
            )
            self._publish(generation, folder)
        finally:
            discard_folder(folder)
        return generation

    def list(self) -> Sequence[Generation]:
        """All generations with a sound manifest, newest first; their files are not read."""
        return [found for found in self._newest_first() if isinstance(found, Generation)]

    def verify(self, generation: Generation) -> None:
        """Read every file and compare it with the manifest.

        Raises:
            NotVerified: the reason is the sentence.
        """
        verify_files(generation)

    def newest_verified(self, skips: MutableSequence[Skip] | None = None) -> Generation | None:
        """The newest generation whose files are what its manifest says; ``skips`` takes the newer ones passed over."""
        for found in self._newest_first():
            if isinstance(found, Skip):
                skip = found
            else:
                try:
                    self.verify(found)
                except NotVerified as error:
                    skip = Skip(found.name, found.folder, str(error), found.attempt, found.step)
                else:
                    return found
            if skips is not None:
                skips.append(skip)
        return None

    def put_back(self, generation: Generation) -> Sequence[Path]:
        """Bring a script's files back to where it wrote them, each whole or not at all; returns those replaced.

        Call it before every launch, while nothing of the job runs.  The library's lie where they are read.

        Raises:
            NotVerified: the generation was damaged meanwhile.
            OSError: a folder on the way is a link, or the disk is full.
        """
        if generation.source == "library":
            return []
        return [
            self._job.root / file.path for file in generation.files if self._put_back_file(generation, file)
        ]

    def resume_path(self, generation: Generation) -> Path:
        """What ``BERTH_RESUME_FROM`` names: the library's folder, or the script's newest file."""
        if generation.source == "library":
            return generation.folder
        newest = max(generation.files, key=lambda file: (file.seen or (0, 0, 0))[1])
        return self._job.root / newest.path

    def torn(self, paths: Sequence[Path]) -> Sequence[Path]:
        """Of these files, the zips (``torch.save``) that were cut short; for a job of which nothing runs."""
        found = []
        for path in paths:
            with self._opened(path.relative_to(self._job.root).as_posix()) as fd:
                if fd is not None and looks_like_zip(fd) and not zip_is_whole(fd):
                    found.append(path)
        return found

    def prune(self, keep_last: int = 3, *, keep: Collection[int] = ()) -> Sequence[int]:
        """Remove a script's generations but the newest ones and those in ``keep``; returns the removed numbers.

        Nothing is removed unless the newest verifies: the older ones may be all there is.
        """
        scripts = self._scripts_newest_first()
        old = [found for found in scripts[max(1, keep_last) :] if found.number not in keep]
        if old:
            try:
                self.verify(scripts[0])
            except NotVerified:
                return []
        for generation in old:
            self.remove(generation)
        self._clear_leftovers()
        return [generation.number for generation in old]

    def remove(self, generation: Generation) -> None:
        """Take a generation away: first its name, in one step, then its files."""
        trash = generation.folder.with_name(f".{generation.folder.name}.trash")
        discard_folder(trash)
        generation.folder.rename(trash)
        sync_folder(trash.parent)
        discard_folder(trash)

    # Listing

    def _newest_first(self) -> Iterator[Generation | Skip]:
        """Both kinds, merged by attempt and time; a folder without a sound manifest keeps its name's place."""
        ours = list(self._read_all(self._library_folders(), "library"))
        theirs = list(self._read_all(self._script_folders(), "script"))
        while ours and theirs:
            yield (ours if _is_newer(ours[0], theirs[0]) else theirs).pop(0)
        yield from ours
        yield from theirs

    def _scripts_newest_first(self) -> Sequence[Generation]:
        found = self._read_all(self._script_folders(), "script")
        return [generation for generation in found if isinstance(generation, Generation)]

    def _read_all(self, folders: Sequence[Path], source: Source) -> Sequence[Generation | Skip]:
        found: deque[Generation | Skip] = deque()
        for folder in folders:
            try:
                found.append(_read_one(folder, source))
            except NotVerified as error:
                kind = "generation" if source == "script" else "checkpoint"
                found.append(Skip(f"{kind} {folder.name}", folder, str(error), *_named_place(folder, source)))
        return found

    def _script_folders(self) -> Sequence[Path]:
        """By number, the newest first."""
        folders = [folder for folder in _real_folders(self._job.generations) if folder.name.isdecimal()]
        return sorted(folders, key=lambda folder: int(folder.name), reverse=True)

    def _library_folders(self) -> Sequence[Path]:
        return [
            folder for folder in _real_folders(self._job.checkpoints) if LIBRARY_NAME.fullmatch(folder.name)
        ]

    def _next_number(self) -> int:
        names = [folder.name for folder in _real_folders(self._job.generations)]
        return 1 + max((int(found[1]) for name in names if (found := re.match(r"\.?(\d+)", name))), default=0)

    def _clear_leftovers(self) -> None:
        for folder in _real_folders(self._job.generations):
            if folder.name.startswith("."):
                discard_folder(folder)

    # Capturing

    def _take_all(
        self,
        paths: Sequence[Path],
        folder: Path,
        newest: Generation | None,
        writer_alive: Callable[[], bool],
        settle_s: float,
    ) -> Sequence[CheckpointFile]:
        known = {file.path: (newest.folder / file.kept, file) for file in newest.files} if newest else {}
        taken: dict[str, CheckpointFile] = {}
        for index, path in enumerate(sorted(set(paths))):
            relative = path.relative_to(self._job.root).as_posix()
            with self._opened(relative) as fd:
                file = None
                if fd is not None:
                    file = _share(fd, folder, index, known.get(relative)) or _copy(
                        fd, relative, folder, index
                    )
            if file is None:
                return []
            taken[relative] = file
        if not self._settled(taken.values(), writer_alive, settle_s):
            return []
        # Again after the wait: what was written meanwhile is not what was copied.
        return list(taken.values()) if all(map(self._unchanged, taken.values())) else []

    @contextmanager
    def _opened(self, relative: str) -> Iterator[int | None]:
        """A file of the job opened for reading; None where it is gone or on the far side of a link."""
        try:
            fd = open_beneath(self._job.root, relative)
        except OSError:
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)

    def _unchanged(self, file: CheckpointFile) -> bool:
        with self._opened(file.path) as fd:
            return fd is not None and not being_written(fd) and _seen(os.fstat(fd)) == file.seen

    def _settled(
        self, files: Collection[CheckpointFile], writer_alive: Callable[[], bool], settle_s: float
    ) -> bool:
        """Whether all files are whole: by their checksums, or because who wrote them lived on."""
        proven, newest_s = True, 0.0
        for file in files:
            with self._opened(file.path) as fd:
                if fd is None or (looks_like_zip(fd) and not zip_is_whole(fd)):
                    return False
                proven = proven and looks_like_zip(fd) and zip_has_its_checksums(fd)
                newest_s = max(newest_s, os.fstat(fd).st_ctime)
        if proven:
            return True
        time.sleep(min(settle_s, max(0.0, newest_s + settle_s - time.time())))
        return writer_alive()

    def _publish(self, generation: Generation, folder: Path) -> None:
        fd = os.open(folder / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            write_all(fd, manifest_bytes(generation, self._job.root.name))
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(folder)
        folder.rename(generation.folder)
        sync_folder(self._job.generations)

    # Putting back

    def _put_back_file(self, generation: Generation, file: CheckpointFile) -> bool:
        *folders, name = PurePosixPath(file.path).parts
        target = open_folder_beneath(self._job.root, tuple(folders), make=True)
        try:
            if self._is_there(file):
                return False
            part = f".{name}{RESTORING}"
            _copy_kept(generation, file, part, target)
            _remove_empty_folder(name, target)
            os.rename(part, name, src_dir_fd=target, dst_dir_fd=target)
            os.fsync(target)
        finally:
            os.close(target)
        return True

    def _is_there(self, file: CheckpointFile) -> bool:
        with self._opened(file.path) as fd:
            return fd is not None and os.fstat(fd).st_size == file.size_bytes and hash_file(fd) == file.sha256


def _remove_empty_folder(name: str, folder: int) -> None:
    """A rename replaces files and links by itself, but no folder."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return


def _copy_kept(generation: Generation, file: CheckpointFile, part: str, target: int) -> None:
    source = os.open(generation.folder / file.kept, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _unlink_if_there(part, target)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=target)
        try:
            cloned = clone(source, fd)
            digest = hash_file(source, None if cloned else lambda chunk: write_all(fd, chunk))
            if digest != file.sha256:
                raise NotVerified(f"{generation.name}: {file.kept} has other bytes than when it was written")
            os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        os.close(source)


def _unlink_if_there(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _read_one(folder: Path, source: Source) -> Generation:
    generation = read_manifest(folder, source)
    attempt, step = _named_place(folder, source)
    if source == "script" and generation.number != int(folder.name):
        raise NotVerified(f"its manifest is of generation {generation.number}")
    if source == "library" and (generation.attempt, generation.step) != (attempt, step):
        raise NotVerified(f"its manifest is of attempt {generation.attempt}, step {generation.step}")
    return generation


def _is_newer(ours: Generation | Skip, theirs: Generation | Skip) -> bool:
    if isinstance(ours, Skip) or isinstance(theirs, Skip):
        return isinstance(ours, Skip)
    return (ours.attempt, ours.created_s) >= (theirs.attempt, theirs.created_s)


def _named_place(folder: Path, source: Source) -> tuple[int | None, int | None]:
    """Attempt and step as the folder's name tells them."""
    found = LIBRARY_NAME.fullmatch(folder.name) if source == "library" else None
    return (int(found[1]), int(found[2])) if found else (None, None)


def _real_folders(folder: Path) -> list[Path]:
    """The folders in a folder, without links; none where it is missing."""
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _contents(files: Sequence[CheckpointFile]) -> set[tuple[str, str]]:
    return {(file.path, file.sha256) for file in files}


def _seen(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _share(
    fd: int, folder: Path, index: int, known: tuple[Path, CheckpointFile] | None
) -> CheckpointFile | None:
    """Take a file from the generation before by a hard link, where it has not changed since."""
    if known is None or _seen(os.fstat(fd)) != known[1].seen or being_written(fd):
        return None
    kept = f"{index:04d}"
    try:
        os.link(known[0], folder / kept, follow_symlinks=False)
    except OSError:
        return None
    return replace(known[1], kept=kept)


def _copy(fd: int, relative: str, folder: Path, index: int) -> CheckpointFile | None:
    """Copy and hash a file; None where it is, or was meanwhile, written to."""
    before = os.fstat(fd)
    if time.time() - before.st_ctime < CLOCK_TICK_S:
        # A second write within one tick of the clock would leave no trace in the times.
        time.sleep(CLOCK_TICK_S)
    if being_written(fd) or _seen(os.fstat(fd)) != _seen(before):
        return None
    kept = f"{index:04d}"
    copy_fd = os.open(folder / kept, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444)
    try:
        size, sha256 = _copy_and_hash(fd, copy_fd)
        os.fsync(copy_fd)
    finally:
        os.close(copy_fd)
    after = os.fstat(fd)
    if being_written(fd) or _seen(after) != _seen(before) or not (size == before.st_size == after.st_size):
        return None
    return CheckpointFile(relative, kept, size, sha256, _seen(before))


def _copy_and_hash(fd: int, copy_fd: int) -> tuple[int, str]:
    if clone(fd, copy_fd):
        return os.fstat(copy_fd).st_size, hash_file(copy_fd)
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(fd, 1 << 20, size):
        digest.update(chunk)
        write_all(copy_fd, chunk)
        size += len(chunk)
    return size, digest.hexdigest()
