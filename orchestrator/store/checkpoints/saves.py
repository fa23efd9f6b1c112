"""Groups files into checkpoints: a folder, the files of one step, or loose files beside them.

Uses names and times only; opens nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import PurePosixPath
from statistics import median_low
from typing import Literal

from orchestrator.store.checkpoints.recipes import (
    CHECKPOINT_WEIGHT,
    NUMBERED_FOLDER,
    RECIPES,
    Recipe,
    weight,
)
from orchestrator.store.checkpoints.step_names import family_number, marks_of_data, series_number

Signature = tuple[int, int, int, int]  # inode, size, mtime, ctime
Kind = Literal["folder", "files"]

TOGETHER_S = 5.0  # within this time, writes belong to one save
# Numbers with gaps between them (0, 25, 50) do not number the parts of one save, unless these are written at once.
AT_ONCE_S = 0.5
LEAST_STEPS_BETWEEN = 10  # from one checkpoint to the next; pieces of data are counted one by one
LEAST_IN_TURN = 3  # files numbered 0, 1, 2 whose times show that they are saves of one run after the other


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint in the layout of its script; paths are relative to the job's folder."""

    kind: Kind
    path: str  # the folder itself, or the folder of the files
    files: Mapping[str, Signature]
    recipe: Recipe | None = None

    @property
    def written_ns(self) -> int:
        """When its last file was written."""
        return max((signature[2] for signature in self.files.values()), default=0)

    @property
    def resume(self) -> str:
        """The path for a script's resume argument: the folder, or the file most likely to be the checkpoint."""
        if self.kind == "files":
            return newest_file(self.files)
        above = PurePosixPath(self.path).parent.as_posix()
        return above if self.recipe is not None and self.recipe.pointer else self.path

    @property
    def name(self) -> str:
        """The checkpoint's name for people; its step is read from this name."""
        return PurePosixPath(self.path if self.kind == "folder" else self.resume).name


@dataclass(frozen=True, slots=True)
class Saves:
    """The checkpoints among some files, and the loose files that belong to none or to all of them."""

    saves: list[Save]  # in order of writing
    loose: dict[str, Signature]


@dataclass(slots=True)
class _Folder:
    files: dict[str, Signature] = field(default_factory=dict)
    folders: dict[str, "_Folder"] = field(default_factory=dict)

    def below(self, prefix: str) -> Iterator[tuple[str, Signature]]:
        """All files below, with their paths."""
        pending = [(prefix, self)]
        while pending:
            path, folder = pending.pop()
            for name, signature in folder.files.items():
                yield f"{path}/{name}", signature
            pending += [(f"{path}/{name}", inner) for name, inner in folder.folders.items()]


def group(files: Iterable[tuple[str, Signature]]) -> Saves:
    """Group these files into checkpoints."""
    saves: list[Save] = []
    loose: dict[str, Signature] = {}
    pending = list(_tree(files).folders.items())
    while pending:
        path, folder = pending.pop()
        checkpoint = _checkpoint_folder(path, folder)
        if checkpoint is not None:
            saves.append(checkpoint)
            continue
        saves += _series(path, folder.files)
        grouped = {name for save in saves for name in save.files}
        loose |= {
            full: signature
            for name, signature in folder.files.items()
            if (full := f"{path}/{name}") not in grouped
        }
        pending += [(f"{path}/{name}", inner) for name, inner in folder.folders.items()]
    return Saves(sorted(saves, key=lambda save: (save.written_ns, save.path)), loose)


def newest_file(files: Mapping[str, Signature]) -> str:
    """The file that a script would load: the most likely checkpoint by its name, then the last written."""
    return max(files, key=lambda path: (weight(PurePosixPath(path).name), files[path][2], path))


def recipe_of(names: Iterable[str], folder: str) -> Recipe | None:
    """The recipe that matches a folder of this name with these files directly inside."""
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
    """The folder as one checkpoint; None if it is not a checkpoint, or only contains checkpoints."""
    name = PurePosixPath(path).name
    numbered = "/" in path and NUMBERED_FOLDER.fullmatch(name) is not None
    recipe = recipe_of(folder.files, name)
    if not numbered and recipe is None:
        return None
    inner = [child for child, below in folder.folders.items() if _is_checkpoint_name(child, below)]
    # A DeepSpeed folder inside a Trainer's folder belongs to it; otherwise this is the folder of a run.
    if inner and not (numbered and folder.files):
        return None
    # Numbered files also make it the folder of a run: 42/ may be a seed.  In step_100/ only names that count steps or
    # epochs do: its model_0.pt and model_1.pt are the parts of one save, however slowly they are written.
    is_series = _is_series if name.isdecimal() else _names_steps
    if recipe is None and any(is_series(near) for near in (folder, *folder.folders.values())):
        return None
    return Save("folder", path, dict(folder.below(path)), recipe)


def _is_checkpoint_name(name: str, folder: _Folder) -> bool:
    return NUMBERED_FOLDER.fullmatch(name) is not None and bool(folder.files or folder.folders)


def _is_series(folder: _Folder) -> bool:
    """Whether a folder directly contains files of several saves, or files that are named after a step."""
    return _names_steps(folder) or bool(_numbers_in_turn(folder.files))


def _names_steps(folder: _Folder) -> bool:
    return any(map(series_number, folder.files))


def _series(path: str, files: Mapping[str, Signature]) -> list[Save]:
    """One checkpoint for each step or epoch in the names of files."""
    in_turn = _numbers_in_turn(files)
    numbered: dict[tuple[str, int], dict[str, Signature]] = defaultdict(dict)
    for name, signature in files.items():
        number = in_turn.get(name) or series_number(name)
        if weight(name) and number is not None:
            numbered[number][f"{path}/{name}"] = signature
    return [Save("files", path, members) for members in numbered.values()]


def _numbers_in_turn(files: Mapping[str, Signature]) -> dict[str, tuple[str, int]]:
    """The numbers of files whose names do not say what they count, but whose times do: one save after another."""
    families: dict[str, dict[int, str]] = defaultdict(dict)
    for name in files:
        if (
            weight(name) == CHECKPOINT_WEIGHT
            and series_number(name) is None
            and (found := family_number(name))
        ):
            families[found[0]][found[1]] = name
    return {
        name: ("step", number)
        for family in families.values()
        if not _are_of_data(family)
        and _are_in_turn({number: files[name][2] for number, name in family.items()})
        for number, name in family.items()
    }


def _are_of_data(family: Mapping[int, str]) -> bool:
    """Whether the files of a family are pieces of data: ``train_0001.pt``, but not ``resnet_train_1000.pth``."""
    distances = [after - before for before, after in pairwise(sorted(family))]
    is_dense = bool(distances) and median_low(distances) < LEAST_STEPS_BETWEEN
    return max(map(marks_of_data, family.values())) + is_dense >= 2


def _are_in_turn(written_ns: Mapping[int, int]) -> bool:
    """Whether files with these numbers are saves of one run after the other, rather than the parts of one save."""
    if len(written_ns) < 2:  # one file alone is one save in any case
        return False
    # The usual distance and pause decide: one missing file, or one save right after another, says nothing of the rest.
    distance = median_low(after - before for before, after in pairwise(sorted(written_ns)))
    pause_s = median_low(after - before for before, after in pairwise(sorted(written_ns.values()))) / 1e9
    if distance > 1:
        return pause_s >= AT_ONCE_S
    in_order = [written_ns[number] for number in sorted(written_ns)]
    return len(written_ns) >= LEAST_IN_TURN and in_order == sorted(in_order) and pause_s >= TOGETHER_S
