"""Folders that a job may have made a thousand deep: walked and removed without recursion.

Before Python 3.12 ``os.walk`` and ``shutil.rmtree`` call themselves for each level, and end in RecursionError.
"""

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def walk(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """As ``os.walk`` from the top down; links to folders are among the files.

    What cannot be listed, because it is gone or its path too long for the kernel, is left out.
    """
    pending = [str(top)]
    while pending:
        here = pending.pop()
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        except OSError:
            continue
        yield here, folders, files
        pending += [f"{here}/{name}" for name in folders]


def remove(top: Path) -> None:
    """Remove a folder with all that is in it; absent is fine, links are not followed.

    What lies two levels down is moved up before its parent goes, so that no path ever gets long.
    """
    if top.is_symlink() or not top.is_dir():
        return
    names = (top / f".{secrets.token_hex(8)}.{number}" for number in itertools.count())
    moved = True
    while moved:
        moved = False
        for folder in _clear(top):
            for inner in _clear(folder):
                with suppress(OSError):
                    inner.rename(next(names))
                    moved = True
            with suppress(OSError):
                folder.rmdir()
    with suppress(OSError):
        top.rmdir()


def _clear(folder: Path) -> list[Path]:
    """Remove the files in a folder; its folders."""
    found = []
    with suppress(OSError):
        folder.chmod(0o700)  # whoever made it may have shut it
        with os.scandir(folder) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    found.append(Path(entry.path))
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108  # a Path for each of a million files costs seconds
    return found
