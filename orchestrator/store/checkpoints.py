"""Generations: the checkpoints that Berth keeps of unchanged scripts, beside those our Checkpointer writes.

A generation exists if and only if its folder has its final name and its manifest verifies: the copies and the
manifest are made durable under a temporary name, and the rename of the folder comes last.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.store.capture import Capture, Wanted, opened
from orchestrator.store.durable import clone, discard_folder, sync_folder, write_all, write_sparsely
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
from orchestrator.store.recipes import weight
from orchestrator.store.saves import Signature, newest_file
from orchestrator.store.writers import looks_like_zip, open_folder_beneath, zip_is_whole

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


@dataclass(frozen=True, slots=True)
class Captured:
    """What came of keeping a checkpoint; paths are relative to the job's folder."""

    generation: Generation | None
    left_out: Sequence[str] = ()  # companions that are open or not proven whole
    refused: str = ""  # the file because of which there is no generation


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

        See ``capture_save``.
        """
        return self.capture_save(Wanted(paths), attempt, step, writer_alive, settle_s=settle_s).generation

    def capture_save(
        self,
        wanted: Wanted,
        attempt: int,
        step: int | None,
        writer_alive: Callable[[], bool],
        *,
        settle_s: float = SETTLE_S,
    ) -> Captured:
        """Keep copies of a finished checkpoint as one generation.

        Files with the same contents as the newest generation's (saved again), or as an older one's and from
        before the attempt (put back), make no new one: that one is returned.

        Args:
            wanted: regular files below the job's folder.  Those that a generation has already, unchanged, are
                shared with it and not copied: hand in all files of a checkpoint.
            attempt: whose writer this is.  Files from before it began count only if they prove themselves, or if
                they are what was put back; others are left out.
            writer_alive: whether the attempt still runs, or ended cleanly.  A process that is killed closes its
                files too; unless a file's own format or the supervisor proves it whole, the writer must have
                lived for ``settle_s`` after the last write.  So this may wait that long.
        """
        kept = self._scripts_newest_first()
        number = self._next_number()
        folder = self._job.generations / f".{number}.tmp"
        discard_folder(folder)
        folder.mkdir(parents=True)
        try:
            work = Capture(self._job, folder, kept, self._began_s(attempt))
            files = work.take(wanted, writer_alive, settle_s)
            if not files:
                return Captured(None, left_out=work.left_out, refused=work.refused)
            for same in kept[:1] if work.is_fresh else kept:
                if _contents(_telling(files)) == _contents(_telling(same.files)):
                    return Captured(same, left_out=work.left_out)
            generation = Generation(
                folder=self._job.generations / str(number),
                source="script",
                number=number,
                attempt=attempt,
                step=step,
                created_s=time.time(),
                files=tuple(files),
                previous=kept[0].number if kept else None,
                resume=wanted.resume,
            )
            self._publish(generation, folder)
        finally:
            discard_folder(folder)
        return Captured(generation, left_out=work.left_out)

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
        """What ``BERTH_RESUME_FROM`` names: a checkpoint's folder, or the file that is the checkpoint."""
        if generation.source == "library":
            return generation.folder
        if generation.resume is not None:
            return self._job.root / generation.resume
        return self._job.root / newest_file({file.path: _signature(file) for file in generation.own_files})

    def torn(self, paths: Sequence[Path]) -> Sequence[Path]:
        """Of these files, the zips (``torch.save``) that were cut short; for a job of which nothing runs."""
        found = []
        for path in paths:
            with opened(self._job, path.relative_to(self._job.root).as_posix()) as fd:
                if fd is not None and looks_like_zip(fd) and not zip_is_whole(fd):
                    found.append(path)
        return found

    def prune(self, keep_last: int = 3, *, keep: Collection[int] = ()) -> Sequence[int]:
        """Remove a script's generations but the newest ones and those in ``keep``; returns the removed numbers.

        Nothing is removed unless the newest verifies: the older ones may be all there is.  A generation that was
        taken while its checkpoint was not complete yet does not count as one of the newest.
        """
        scripts = self._scripts_newest_first()
        halves = [found for found in scripts[1:] if any(_is_part_of(found, whole) for whole in scripts)]
        last = [found for found in scripts if found not in halves][: max(1, keep_last)]
        old = [found for found in scripts if found not in last and found.number not in keep]
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
        """By attempt and step, the newest first."""
        places = [
            (int(found[1]), int(found[2]), folder)
            for folder in _real_folders(self._job.checkpoints)
            if (found := LIBRARY_NAME.fullmatch(folder.name))
        ]
        return [folder for _, _, folder in sorted(places, reverse=True)]

    def _next_number(self) -> int:
        names = [folder.name for folder in _real_folders(self._job.generations)]
        return 1 + max((int(found[1]) for name in names if (found := re.match(r"\.?(\d+)", name))), default=0)

    def _clear_leftovers(self) -> None:
        for folder in _real_folders(self._job.generations):
            if folder.name.startswith("."):
                discard_folder(folder)

    # Capturing

    def _began_s(self, attempt: int) -> float:
        """When an attempt's supervisor started, by the file that it wrote first; 0 where it has none."""
        try:
            return self._job.attempt(attempt).supervisor.stat().st_mtime
        except FileNotFoundError:
            return 0.0

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
        with opened(self._job, file.path) as fd:
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
            digest = hash_file(source, None if cloned else lambda chunk: write_sparsely(fd, chunk))
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


def _is_part_of(half: Generation, whole: Generation) -> bool:
    """Whether a later generation has all that an earlier one has, and more files of the same checkpoint."""
    return whole.number > half.number and _contents(half.own_files) < _contents(whole.own_files)


def _signature(file: CheckpointFile) -> Signature:
    inode, mtime_ns, ctime_ns = file.seen or (0, 0, 0)
    return inode, file.size_bytes, mtime_ns, ctime_ns


def _telling(files: Sequence[CheckpointFile]) -> Sequence[CheckpointFile]:
    """Without the documents beside a checkpoint: a table of losses that grew makes no other checkpoint."""
    return [file for file in files if not file.companion or weight(PurePosixPath(file.path).name)]


def _contents(files: Sequence[CheckpointFile]) -> set[tuple[str, str]]:
    return {(file.path, file.sha256) for file in files}
