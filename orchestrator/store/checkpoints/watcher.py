"""Finds files that a script finished writing (closed, or renamed into place) since the last look."""

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from orchestrator.store.checkpoints.capture import signature_of
from orchestrator.store.checkpoints.recipes import UNFINISHED, is_foreign_file, is_foreign_folder
from orchestrator.store.checkpoints.saves import Signature
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.linux.kernel import being_written

MOST_FILES = 20_000
MOST_DEPTH = 16
# Folders of our Checkpointer are verified in place; the longer names are unfinished ones.
LIBRARY_FOLDER = re.compile(r"\d+-\d+(?:\..*)?")
HIDDEN_PARTS = frozenset({".metadata"})  # of torch.distributed.checkpoint


class Watcher:
    """Watches a job's checkpoint folder, and the files in its working folder that match patterns.

    Never follows links.  Call ``poll`` about once a second, and ``forget`` for a file that could not be copied yet.
    Ignores files of trackers and loggers.
    """

    def __init__(
        self, job: JobFolder, glob: str | None = None, *, known: dict[str, Signature] | None = None
    ) -> None:
        self._job = job
        self._glob = glob
        self._patterns = glob_patterns(glob)
        self._also: frozenset[str] = frozenset()
        self._reported: dict[str, Signature] = dict(known or {})
        self._before: dict[str, Signature] = {}
        self._open: dict[str, tuple[int, int]] = {}  # path -> inode, looks

    def watch(self, glob: str | None) -> None:
        """Use other patterns from now on."""
        if glob != self._glob:
            self._glob, self._patterns = glob, glob_patterns(glob)

    def watch_also(self, paths: Collection[str]) -> None:
        """Also watch these files and folders, relative to the job's folder."""
        self._also = frozenset(paths)

    def poll(self) -> list[Path]:
        """Files that changed since they were last reported and that no process is writing."""
        signatures = dict(self._scan())
        changed = [path for path, signature in signatures.items() if self._reported.get(path) != signature]
        finished = {path for path in changed if self._is_finished(path, signatures[path])}
        self._note_open(signatures, [path for path in changed if path not in finished])
        self._before = signatures
        self._reported = {path: signature for path, signature in self._reported.items() if path in signatures}
        self._reported |= {path: signatures[path] for path in finished}
        return [self._job.root / path for path in sorted(finished)]

    def seen(self) -> Mapping[str, Signature]:
        """The files of the last ``poll`` with their signatures."""
        return self._before

    def files(self) -> list[Path]:
        """All files that may belong to a checkpoint, finished or not."""
        return [self._job.root / path for path, _ in sorted(self._scan())]

    def signatures(self) -> list[tuple[str, Signature]]:
        """The same files with their signatures; paths are relative to the job's folder."""
        return sorted(self._scan())

    def held_open(self, looks: int) -> set[str]:
        """Files that were being written at each of the last ``looks`` looks."""
        return {path for path, (_, count) in self._open.items() if count >= looks}

    def forget(self, paths: Collection[Path]) -> None:
        """Report these again at the next look."""
        for path in paths:
            self._reported.pop(path.relative_to(self._job.root).as_posix(), None)

    def _note_open(self, signatures: dict[str, Signature], unfinished: list[str]) -> None:
        before = self._open
        self._open = {}
        for path in unfinished:
            inode = signatures[path][0]
            self._open[path] = inode, 1 + (before[path][1] if before.get(path, (0, 0))[0] == inode else 0)

    def _is_finished(self, path: str, signature: Signature) -> bool:
        try:
            fd = open_beneath(self._job.root, path)
        except OSError:
            return False
        try:
            writing = being_written(fd)
            if not writing and signature_of(os.fstat(fd)) != signature:  # closed since the scan
                return False
        finally:
            os.close(fd)
        # Without leases, a file is finished once it is unchanged between two looks.
        return self._before.get(path) == signature if writing is None else not writing

    def _scan(self) -> Iterator[tuple[str, Signature]]:
        budget = [MOST_FILES]
        yield from walk(self._job.checkpoints, "checkpoints/", budget, skip=LIBRARY_FOLDER.fullmatch)
        if self._patterns or self._also:
            for path, signature in walk(self._job.work, "work/", budget):
                if self._is_named(path):
                    yield path, signature

    def _is_named(self, path: str) -> bool:
        inner = path.removeprefix("work/")
        if any(pattern.fullmatch(inner) for pattern in self._patterns) or path in self._also:
            return True
        return bool(self._also) and any(
            parent.as_posix() in self._also for parent in PurePosixPath(path).parents
        )


def walk(
    folder: Path,
    prefix: str,
    budget: list[int],
    depth: int = 0,
    *,
    skip: Callable[[str], object] = lambda _: False,
) -> Iterator[tuple[str, Signature]]:
    """The files below a folder that may belong to a checkpoint, with their signatures.  Follows no links.

    Args:
        budget: number of entries that may still be visited, shared by several walks.
        skip: tells by its name whether to leave out a folder.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError:  # removed, or not a folder
        return
    for entry in entries:
        budget[0] -= 1
        if budget[0] < 0:
            return
        if entry.is_dir(follow_symlinks=False):
            if depth < MOST_DEPTH and not is_foreign_folder(entry.name) and not skip(entry.name):
                yield from walk(folder / entry.name, f"{prefix}{entry.name}/", budget, depth + 1, skip=skip)
            continue
        if not _may_belong(entry.name):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size:
            yield f"{prefix}{entry.name}", signature_of(status)


def _may_belong(name: str) -> bool:
    if name in HIDDEN_PARTS:
        return True
    if not name.isprintable() and not _is_text(name):  # a manifest cannot name it
        return False
    return not (name.startswith(".") or name.endswith(UNFINISHED) or is_foreign_file(name))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def glob_patterns(glob: str | None) -> list[re.Pattern[str]]:
    """The patterns of a job's ``checkpoint_glob``; commas separate several."""
    return [glob_pattern(part.strip()) for part in (glob or "").split(",") if part.strip()]


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A pattern for relative paths: ``*`` and ``?`` match within a name, ``**/`` matches any folders."""
    tokens = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.removeprefix("./"))
    return re.compile("".join(tokens.get(part, re.escape(part)) for part in parts), re.DOTALL)
