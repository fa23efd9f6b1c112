"""Finds the files that a script has finished writing: closed, or renamed into place, since the last look."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from orchestrator.store.layout import JobFolder
from orchestrator.store.writers import being_written, open_beneath

MOST_FILES = 20_000
MOST_DEPTH = 16
# What our Checkpointer writes is verified where it lies; the others are not finished by their own name.
LIBRARY_FOLDER = re.compile(r"\d+-\d+(?:\..*)?")
UNFINISHED = (".tmp", ".part", ".partial", ".lock", ".swp")
Signature = tuple[int, int, int, int]  # inode, size, mtime, ctime


class Watcher:
    """Looks at a job's checkpoint folder, and at the files in its working folder that a pattern names.

    Links are never followed.  Call ``poll`` about once a second; a file that cannot be taken yet goes
    back with ``forget``.
    """

    def __init__(
        self, job: JobFolder, glob: str | None = None, *, known: dict[str, Signature] | None = None
    ) -> None:
        self._job = job
        self._pattern = None if glob is None else glob_pattern(glob)
        self._reported: dict[str, Signature] = dict(known or {})
        self._before: dict[str, Signature] = {}

    def poll(self) -> list[Path]:
        """Files that changed since they were last reported and that no process is writing now."""
        found = dict(self._scan())
        changed = [path for path, signature in found.items() if self._reported.get(path) != signature]
        finished = [path for path in changed if self._is_finished(path, found[path])]
        self._before = found
        self._reported = {path: signature for path, signature in self._reported.items() if path in found}
        self._reported |= {path: found[path] for path in finished}
        return [self._job.root / path for path in sorted(finished)]

    def files(self) -> list[Path]:
        """All files that count as parts of a checkpoint, finished or not."""
        return [self._job.root / path for path, _ in sorted(self._scan())]

    def forget(self, paths: list[Path]) -> None:
        """Report these again at the next look."""
        for path in paths:
            self._reported.pop(path.relative_to(self._job.root).as_posix(), None)

    def _is_finished(self, path: str, signature: Signature) -> bool:
        try:
            fd = open_beneath(self._job.root, path)
        except OSError:
            return False
        try:
            writing = being_written(fd)
        finally:
            os.close(fd)
        # Where there are no leases, a file counts once it has stayed the same between two looks.
        return self._before.get(path) == signature if writing is None else not writing

    def _scan(self) -> Iterator[tuple[str, Signature]]:
        left = [MOST_FILES]
        yield from _walk(self._job.checkpoints, "checkpoints/", left, 0, skip=LIBRARY_FOLDER)
        if self._pattern is not None:
            for path, signature in _walk(self._job.work, "work/", left, 0, skip=None):
                if self._pattern.fullmatch(path.removeprefix("work/")):
                    yield path, signature


def _walk(
    folder: Path, prefix: str, left: list[int], depth: int, *, skip: re.Pattern[str] | None
) -> Iterator[tuple[str, Signature]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # gone meanwhile, or no folder
        return
    for entry in entries:
        left[0] -= 1
        if left[0] < 0:
            return
        if entry.is_dir(follow_symlinks=False):
            if depth < MOST_DEPTH and not (skip and skip.fullmatch(entry.name)):
                yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", left, depth + 1, skip=skip)
            continue
        if entry.name.startswith(".") or entry.name.endswith(UNFINISHED):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size:
            yield f"{prefix}{entry.name}", signature_of(status)


def signature_of(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A pattern of relative paths: ``*`` and ``?`` stay within a name, ``**/`` is any folders."""
    tokens = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.removeprefix("./"))
    return re.compile("".join(tokens.get(part, re.escape(part)) for part in parts), re.DOTALL)
