"""Models and datasets that administrators keep for everybody, shown in each person's cache.

Programs look for what they downloaded in one folder that they can write to. So a person's cache gets links to the shared
files, in folders of its own: what is there is used, and what is not there is downloaded beside it.
"""

import logging
import os
from pathlib import Path

from django.conf import settings

from orchestrator.store.files.untrusted import open_folder_beneath, walk_tree

logger = logging.getLogger(__name__)

# Not the folders above them, where a program may have left the token of the person who filled them.
PLACES = ("huggingface/hub", "huggingface/datasets", "torch/hub")
_REFS = "refs"  # small files with the commit of a branch, which a later download rewrites
_UNFINISHED = (".incomplete", ".lock", ".partial")


def folders() -> list[Path]:
    """The shared folders that are there; jobs read them, and never write."""
    root = settings.HOME.shared_models
    return [place.resolve() for name in PLACES if (place := root / name).is_dir()]


def show_in(cache: Path) -> None:
    """Put links to shared files into a person's cache, where it has nothing of the name.

    Jobs of this person may write there at the same time: no link of theirs is followed.
    """
    root = settings.HOME.shared_models
    for name in PLACES:
        top = root / name
        for place, _, names in walk_tree(top.resolve()) if top.is_dir() else ():
            below = Path(place).relative_to(top.resolve())
            names = [each for each in names if not each.endswith(_UNFINISHED)]
            if names:
                _show_folder(Path(place), names, cache, (*Path(name).parts, *below.parts))


def _show_folder(source: Path, names: list[str], cache: Path, parts: tuple[str, ...]) -> None:
    try:
        folder = open_folder_beneath(cache, parts, make=True)
    except OSError as error:  # a job has put something else there
        logger.info("Shared models are not shown in %s: %s", cache, error)
        return
    try:
        for name in names:
            _show(source / name, name, folder, is_ref=_REFS in parts)
    finally:
        os.close(folder)


def _show(source: Path, name: str, folder: int, *, is_ref: bool) -> None:
    try:
        if is_ref:
            content = source.read_bytes()
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
        else:  # a link of the cache leads to its own files, by a path from where it is
            target = str(source.readlink()) if source.is_symlink() else str(source)
            os.symlink(target, name, dir_fd=folder)
    except FileExistsError:
        return
    except OSError as error:
        logger.info("The shared file %s cannot be shown: %s", source, error)
