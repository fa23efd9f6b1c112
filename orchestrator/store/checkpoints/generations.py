"""Generations: copies of the checkpoints of unchanged scripts, listed together with those of our Checkpointer.

A generation exists if and only if its folder has its final name and its manifest verifies: copies and manifest are
made durable under a temporary name, and the folder is renamed last.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.store.checkpoints.capture import Capture, Wanted, opened
from orchestrator.store.checkpoints.cut_files import is_cut_short
from orchestrator.store.checkpoints.manifest import (
    MANIFEST,
    CheckpointFile,
    CheckpointSource,
    Generation,
    NotVerified,
    hash_file,
    manifest_bytes,
    read_manifest,
    verify_files,
)
from orchestrator.store.checkpoints.recipes import weight
from orchestrator.store.checkpoints.saves import Signature, newest_file
from orchestrator.store.files.durable import clone, sync_folder, write_all, write_sparsely
from orchestrator.store.files.untrusted import open_folder_beneath, remove_tree
from orchestrator.store.layout import JobFolder

SETTLE_S = 2.0
LIBRARY_NAME = re.compile(r"(\d+)-(\d+)")
RESTORING = ".berth-part"


@dataclass(frozen=True, slots=True)
class Skip:
    """A generation that was skipped, and why."""

    name: str
    folder: Path
    reason: str
    attempt: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """The result of keeping a checkpoint; paths are relative to the job's folder."""

    generation: Generation | None
    left_out: Sequence[str] = ()  # companions that are open or not proven complete
    refused: str = ""  # the file that prevented a generation


class GenerationStore:
    """The checkpoints of one job.  Only one process (the agent) captures, restores or prunes at a time."""

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
        """Copy finished files as one generation; None if any of them is being written or torn.

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
        """Copy a finished checkpoint as one generation.

        Files equal to the newest generation (saved again), or equal to an older one and written before the attempt
        (restored), make no new generation: the existing one is returned.

        Args:
            wanted: regular files below the job's folder.  Pass all files of a checkpoint: unchanged files of an
                earlier generation are linked, not copied.
            attempt: the attempt that writes.  Older files count only if their format proves them complete, or if
                they were restored; others are left out.
            writer_alive: whether the attempt still runs, or ended cleanly.  A killed process closes its files too:
                unless the format or the supervisor proves a file complete, the writer must have lived for
                ``settle_s`` after the last write.  This call may wait that long.
        """
        earlier = self._scripts_newest_first()
        number = self._next_number()
        folder = self._job.generations / f".{number}.tmp"
        remove_tree(folder)
        folder.mkdir(parents=True)
        try:
            work = Capture(self._job, folder, earlier, self._began_s(attempt))
            files = work.take(wanted, writer_alive, settle_s)
            if not files:
                return Captured(None, left_out=work.left_out, refused=work.refused)
            for same in earlier[:1] if work.is_fresh else earlier:
                if _contents(_significant(files)) == _contents(_significant(same.files)):
                    return Captured(same, left_out=work.left_out)
            generation = Generation(
                folder=self._job.generations / str(number),
                source="script",
                number=number,
                attempt=attempt,
                step=step,
                created_s=time.time(),
                files=tuple(files),
                previous=earlier[0].number if earlier else None,
                resume=wanted.resume,
            )
            self._publish(generation, folder)
        finally:
            remove_tree(folder)
        return Captured(generation, left_out=work.left_out)

    def list(self) -> Sequence[Generation]:
        """All generations with a valid manifest, newest first; does not read their files."""
        return [entry for entry in self._newest_first() if isinstance(entry, Generation)]

    def verify(self, generation: Generation) -> None:
        """Read every file and compare it with the manifest.

        Raises:
            NotVerified: the reason is the sentence.
        """
        verify_files(generation)

    def newest_verified(self, skips: MutableSequence[Skip] | None = None) -> Generation | None:
        """The newest generation whose files match its manifest; ``skips`` collects the newer ones that were skipped."""
        for generation in self._newest_first():
            if isinstance(generation, Skip):
                skip = generation
            else:
                try:
                    self.verify(generation)
                except NotVerified as error:
                    skip = Skip(
                        generation.name, generation.folder, str(error), generation.attempt, generation.step
                    )
                else:
                    return generation
            if skips is not None:
                skips.append(skip)
        return None

    def put_back(self, generation: Generation) -> Sequence[Path]:
        """Restore a script's files to where it wrote them, each atomically; returns those replaced.

        Call it before every launch, while nothing of the job runs.  Files of the library are read in place.

        Raises:
            NotVerified: the generation is damaged.
            OSError: a folder in the path is a link, or the disk is full.
        """
        if generation.source == "library":
            return []
        return [
            self._job.root / file.path for file in generation.files if self._put_back_file(generation, file)
        ]

    def resume_path(self, generation: Generation) -> Path:
        """The value of ``BERTH_RESUME_FROM``: the checkpoint's folder or file."""
        if generation.source == "library":
            return generation.folder
        if generation.resume is not None:
            return self._job.root / generation.resume
        return self._job.root / newest_file({file.path: _signature(file) for file in generation.own_files})

    def torn(self, paths: Sequence[Path]) -> Sequence[Path]:
        """The files among these that their formats show to be cut; for a job without running processes."""
        torn = []
        for path in paths:
            with opened(self._job, path.relative_to(self._job.root).as_posix()) as fd:
                if fd is not None and is_cut_short(fd, path.name):
                    torn.append(path)
        return torn

    def prune(self, keep_last: int = 3, *, keep: Collection[int] = ()) -> Sequence[int]:
        """Remove a script's generations except the newest and those in ``keep``; returns the removed numbers.

        Removes nothing unless the newest verifies: the older ones may be all there is.  A generation of a
        checkpoint that was not complete yet does not count as one of the newest.
        """
        scripts = self._scripts_newest_first()
        halves = [half for half in scripts[1:] if any(_is_part_of(half, whole) for whole in scripts)]
        newest = [entry for entry in scripts if entry not in halves][: max(1, keep_last)]
        old = [entry for entry in scripts if entry not in newest and entry.number not in keep]
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
        """Remove a generation: first rename it, in one step, then delete its files."""
        trash = generation.folder.with_name(f".{generation.folder.name}.trash")
        remove_tree(trash)
        generation.folder.rename(trash)
        sync_folder(trash.parent)
        remove_tree(trash)

    # Listing

    def _newest_first(self) -> Iterator[Generation | Skip]:
        """Both kinds, merged by attempt and time; a folder without a valid manifest keeps its place by name."""
        ours = list(self._read_all(self._library_folders(), "library"))
        theirs = list(self._read_all(self._script_folders(), "script"))
        while ours and theirs:
            yield (ours if _is_newer(ours[0], theirs[0]) else theirs).pop(0)
        yield from ours
        yield from theirs

    def _scripts_newest_first(self) -> Sequence[Generation]:
        entries = self._read_all(self._script_folders(), "script")
        return [generation for generation in entries if isinstance(generation, Generation)]

    def _read_all(self, folders: Sequence[Path], source: CheckpointSource) -> Sequence[Generation | Skip]:
        entries: deque[Generation | Skip] = deque()
        for folder in folders:
            try:
                entries.append(_read_one(folder, source))
            except NotVerified as error:
                kind = "generation" if source == "script" else "checkpoint"
                entries.append(
                    Skip(f"{kind} {folder.name}", folder, str(error), *_named_place(folder, source))
                )
        return entries

    def _script_folders(self) -> Sequence[Path]:
        """By number, the newest first."""
        folders = [folder for folder in _real_folders(self._job.generations) if folder.name.isdecimal()]
        return sorted(folders, key=lambda folder: int(folder.name), reverse=True)

    def _library_folders(self) -> Sequence[Path]:
        """By attempt and step, the newest first."""
        places = [
            (int(match[1]), int(match[2]), folder)
            for folder in _real_folders(self._job.checkpoints)
            if (match := LIBRARY_NAME.fullmatch(folder.name))
        ]
        return [folder for _, _, folder in sorted(places, reverse=True)]

    def _next_number(self) -> int:
        names = [folder.name for folder in _real_folders(self._job.generations)]
        return 1 + max((int(match[1]) for name in names if (match := re.match(r"\.?(\d+)", name))), default=0)

    def _clear_leftovers(self) -> None:
        for folder in _real_folders(self._job.generations):
            if folder.name.startswith("."):
                remove_tree(folder)

    # Capturing

    def _began_s(self, attempt: int) -> float:
        """When an attempt's supervisor started, from the first file that it wrote; 0 without one."""
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
    """Remove an empty folder in the way; a rename replaces files and links, but not folders."""
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


def _read_one(folder: Path, source: CheckpointSource) -> Generation:
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


def _named_place(folder: Path, source: CheckpointSource) -> tuple[int | None, int | None]:
    """Attempt and step from the folder's name."""
    match = LIBRARY_NAME.fullmatch(folder.name) if source == "library" else None
    return (int(match[1]), int(match[2])) if match else (None, None)


def _real_folders(folder: Path) -> list[Path]:
    """The subfolders of a folder, without links; empty for a missing folder."""
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_part_of(half: Generation, whole: Generation) -> bool:
    """Whether a later generation has all files of an earlier one, and more of the same checkpoint."""
    return whole.number > half.number and _contents(half.own_files) < _contents(whole.own_files)


def _signature(file: CheckpointFile) -> Signature:
    inode, mtime_ns, ctime_ns = file.seen or (0, 0, 0)
    return inode, file.size_bytes, mtime_ns, ctime_ns


def _significant(files: Sequence[CheckpointFile]) -> Sequence[CheckpointFile]:
    """The files without documents beside them: a longer table of losses does not make another checkpoint."""
    return [file for file in files if not file.companion or weight(PurePosixPath(file.path).name)]


def _contents(files: Sequence[CheckpointFile]) -> set[tuple[str, str]]:
    return {(file.path, file.sha256) for file in files}
