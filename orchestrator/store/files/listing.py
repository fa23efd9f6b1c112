"""Lists the files below a folder that a job controls: without links, and within bounds."""

import os
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from orchestrator.store.files.untrusted import DEEPEST, open_folder_beneath, walk_tree

LISTED_FILES = 5_000
VISITED_ENTRIES = 50_000  # takes about 0.2 s


class FoundFile(NamedTuple):
    path: str  # relative to the listed folder
    status: os.stat_result


class _Entry(NamedTuple):
    name: str
    is_folder: bool
    status: os.stat_result | None  # of regular files


def list_files(
    root: Path,
    *,
    skips: Callable[[str, Collection[str]], bool] = lambda folder, names: False,
    takes: Callable[[str, os.stat_result], bool] = lambda path, status: True,
) -> tuple[list[FoundFile], bool]:
    """List regular files under ``root`` by path, without links; True when the list is truncated.

    Folders near the root come first, so that a truncated list holds what lies at hand.

    Args:
        skips: tells by a folder's path and the names in it whether to leave it out with all that is below.
        takes: tells whether to list a file.
    """
    files: list[FoundFile] = []
    pending = deque([""])
    budget = VISITED_ENTRIES
    while pending:
        folder = pending.popleft()
        entries = _read_folder(root, folder, budget + 1)
        budget -= len(entries)
        is_skipped = folder and skips(folder, {entry.name for entry in entries})
        for name, is_folder, status in () if is_skipped else entries:
            path = f"{folder}/{name}" if folder else name
            if is_folder and path.count("/") < DEEPEST - 1:
                pending.append(path)
            elif status is not None and takes(path, status):
                files.append(FoundFile(path, status))
            if len(files) > LISTED_FILES:
                return sorted(files[:LISTED_FILES]), True
        if budget < 0:
            return sorted(files), True
    return sorted(files), False


def _read_folder(root: Path, folder: str, most: int) -> list[_Entry]:
    """The entries of a folder by name, ``most`` at most; none if it is not there, or has become a link."""
    try:
        fd = open_folder_beneath(root, tuple(folder.split("/")) if folder else ())
    except OSError:  # not written yet, or removed during the listing
        return []
    try:
        with os.scandir(fd) as entries:
            return sorted(map(_read_entry, islice(entries, most)), key=lambda entry: entry.name)
    except OSError:
        return []
    finally:
        os.close(fd)


def _read_entry(entry: os.DirEntry[str]) -> _Entry:
    try:
        is_file = entry.is_file(follow_symlinks=False)
        status = entry.stat(follow_symlinks=False) if is_file else None
    except OSError:  # removed just now
        status = None
    return _Entry(entry.name, entry.is_dir(follow_symlinks=False), status)


def size_of(folder: Path) -> tuple[int, float]:
    """Bytes on disk, each file once, and when one of them was last used."""
    seen: set[tuple[int, int]] = set()
    total_bytes, used_s = 0, 0.0
    for place, _, names in walk_tree(folder) if folder.is_dir() else ():
        for name in names:
            try:
                about = Path(place, name).lstat()
            except OSError:
                continue  # removed just now
            used_s = max(used_s, about.st_atime, about.st_mtime)
            if (about.st_dev, about.st_ino) not in seen:
                seen.add((about.st_dev, about.st_ino))
                total_bytes += about.st_blocks * 512
    return total_bytes, used_s
