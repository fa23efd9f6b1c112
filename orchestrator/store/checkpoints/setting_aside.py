"""Renames a save that no script may load to ``NAME.torn``, and keeps the one that was set aside before it."""

import itertools
import stat
from pathlib import Path

from orchestrator.store.files.untrusted import remove_tree


def set_aside(path: Path) -> Path:
    """Rename a file or a folder to ``NAME.torn``, and the one set aside before it to ``NAME.1.torn``; older ones go.

    Something of another kind under these names is the script's own: it stays, and the next free name is used.

    Returns: the new path.
    """
    is_folder = path.is_dir()
    numbers = itertools.count()
    newest, older = itertools.islice(
        (place for number in numbers if _may_be_ours(place := _place(path, number), is_folder=is_folder)), 2
    )
    if newest.exists():
        remove_tree(older)  # a rename replaces files, but not folders with files
        newest.rename(older)
    return path.rename(newest)


def _place(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}.torn" if number else f"{path.name}.torn")


def _may_be_ours(place: Path, *, is_folder: bool) -> bool:
    """Whether a name is free, or has a file where a file is set aside, or a folder where a folder is."""
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)
