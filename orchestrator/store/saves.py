"""Which files make one checkpoint: a folder, files of one step, or what lies loose beside them.

Works on names and times alone; nothing is opened.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal

from orchestrator.store.recipes import NUMBERED_FOLDER, RECIPES, Recipe, weight
from orchestrator.store.step_names import series_number

Signature = tuple[int, int, int, int]  # inode, size, mtime, ctime
Kind = Literal["folder", "files"]


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint as a script laid it out; paths are relative to the job's folder."""

    kind: Kind
    path: str  # the folder, or the folder that the files are in
    files: Mapping[str, Signature]
    recipe: Recipe | None = None

    @property
    def written_ns(self) -> int:
        """When the last of its files was written."""
        return max((signature[2] for signature in self.files.values()), default=0)

    @property
    def resume(self) -> str:
        """What a script's resume argument names: the folder; for files the one that is most like a checkpoint."""
        if self.kind == "files":
            return newest_file(self.files)
        above = PurePosixPath(self.path).parent.as_posix()
        return above if self.recipe is not None and self.recipe.pointer else self.path

    @property
    def name(self) -> str:
        """What a person calls it; its step is read from here."""
        return PurePosixPath(self.path if self.kind == "folder" else self.resume).name


@dataclass(frozen=True, slots=True)
class Saves:
    """All that lies there: checkpoints apart from each other, and files that belong to none or to all of them."""

    saves: list[Save]  # the last written is the last
    loose: dict[str, Signature]


@dataclass(slots=True)
class _Folder:
    files: dict[str, Signature] = field(default_factory=dict)
    folders: dict[str, "_Folder"] = field(default_factory=dict)

    def below(self, prefix: str) -> Iterator[tuple[str, Signature]]:
        """All files, with their paths."""
        pending = [(prefix, self)]
        while pending:
            path, folder = pending.pop()
            for name, signature in folder.files.items():
                yield f"{path}/{name}", signature
            pending += [(f"{path}/{name}", inner) for name, inner in folder.folders.items()]


def group(files: Iterable[tuple[str, Signature]]) -> Saves:
    """Tell the checkpoints among these files apart."""
    saves: list[Save] = []
    loose: dict[str, Signature] = {}
    pending = list(_tree(files).folders.items())
    while pending:
        path, folder = pending.pop()
        found = _checkpoint_folder(path, folder)
        if found is not None:
            saves.append(found)
            continue
        saves += _series(path, folder.files)
        taken = {name for save in saves for name in save.files}
        loose |= {
            full: signature
            for name, signature in folder.files.items()
            if (full := f"{path}/{name}") not in taken
        }
        pending += [(f"{path}/{name}", inner) for name, inner in folder.folders.items()]
    return Saves(sorted(saves, key=lambda save: (save.written_ns, save.path)), loose)


def newest_file(files: Mapping[str, Signature]) -> str:
    """Of some files the one that a script would load: like a checkpoint by its name, and written last."""
    return max(files, key=lambda path: (weight(PurePosixPath(path).name), files[path][2], path))


def recipe_of(names: Iterable[str], folder: str) -> Recipe | None:
    """The framework that lays out a folder of this name, with these files directly in it."""
    names = list(names)
    for recipe in RECIPES:
        marks = all(any(fnmatchcase(name, mark) for name in names) for mark in recipe.marks)
        if marks and recipe.folder.fullmatch(folder):
            return recipe
    return None


def _tree(files: Iterable[tuple[str, Signature]]) -> _Folder:
    root = _Folder()
    for path, signature in files:
        *parts, name = PurePosixPath(path).parts
        folder = root
        for part in parts:
            folder = folder.folders.setdefault(part, _Folder())
        folder.files[name] = signature
    return root


def _checkpoint_folder(path: str, folder: _Folder) -> Save | None:
    """The folder as one checkpoint; None where it is none, or only holds those that are."""
    name = PurePosixPath(path).name
    numbered = "/" in path and NUMBERED_FOLDER.fullmatch(name) is not None
    recipe = recipe_of(folder.files, name)
    if not numbered and recipe is None:
        return None
    inner = [each for each, below in folder.folders.items() if _is_checkpoint_name(each, below)]
    # DeepSpeed's folder inside the Trainer's belongs to it; ten of them make it the folder of a run.
    if inner and not (numbered and folder.files):
        return None
    # So do files that are numbered themselves: 42/ may be a seed.
    if recipe is None and any(series_number(each) for each in _names_near(folder)):
        return None
    return Save("folder", path, dict(folder.below(path)), recipe)


def _is_checkpoint_name(name: str, folder: _Folder) -> bool:
    return NUMBERED_FOLDER.fullmatch(name) is not None and bool(folder.files or folder.folders)


def _names_near(folder: _Folder) -> Iterator[str]:
    """Of the files in a folder, and one level down."""
    yield from folder.files
    for inner in folder.folders.values():
        yield from inner.files


def _series(path: str, files: Mapping[str, Signature]) -> list[Save]:
    """Files that carry a step or an epoch in their names, together with those of the same one."""
    numbered: dict[tuple[str, int], dict[str, Signature]] = defaultdict(dict)
    for name, signature in files.items():
        if weight(name) and (number := series_number(name)) is not None:
            numbered[number][f"{path}/{name}"] = signature
    return [Save("files", path, found) for found in numbered.values()]
