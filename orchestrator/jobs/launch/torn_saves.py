"""Renames saves that no script may load to ``NAME.torn``: what a killed script left half written."""

import itertools
import stat
from collections.abc import Sequence
from pathlib import Path

from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Job
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.checkpoints.rewrites import without_digits
from orchestrator.store.checkpoints.saves import Save, group
from orchestrator.store.checkpoints.watcher import Watcher
from orchestrator.store.files.untrusted import remove_tree
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.watch.finished_files import read_finished_files


def set_torn_saves_aside(
    job: Job, folder: JobFolder, store: GenerationStore, generation: Generation | None
) -> None:
    """Rename folders and files that are half written, and files of a step whose other files are missing.

    Each is noted in the job's history.

    Args:
        generation: the checkpoint that the next attempt starts from.
    """
    watcher = Watcher(folder, job.spec.checkpoint_glob)
    _set_torn_folders_aside(job, watcher, folder, generation)
    verified = {folder.root / file.path for file in generation.files} if generation else set()
    _set_torn_files_aside(job, store, [path for path in watcher.files() if path not in verified])
    _set_halves_aside(job, watcher, store, folder, generation)


def _set_torn_folders_aside(
    job: Job, watcher: Watcher, folder: JobFolder, generation: Generation | None
) -> None:
    """Rename folders that were being written at the kill: a trainer that looks for its last folder would use them."""
    own = {file.path for file in generation.files} if generation else set()
    seen = [file.seen[1] for file in generation.files if file.seen] if generation else []
    for save in group(watcher.signatures()).saves:
        is_newer = save.kind == "folder" and save.written_ns > max(seen, default=0)
        if is_newer and own.isdisjoint(save.files) and not _is_proven(save, folder):
            torn = _set_aside(folder.root / save.path).name
            name = Path(save.path).name
            lifecycle.remark(job, fact(Happened.UNFINISHED_FOLDER, name=name, torn=torn), actor="launcher")


def _is_proven(save: Save, folder: JobFolder) -> bool:
    """Whether the supervisor of an earlier attempt saw every file of the folder finished."""
    numbers = [int(path.name) for path in (folder.root / "attempts").glob("[0-9]*") if path.name.isdecimal()]
    vouched = [read_finished_files(folder.attempt(number)) for number in sorted(numbers)[-2:]]
    return all(
        any(files.get(path) == signature for files in vouched) for path, signature in save.files.items()
    )


def _set_torn_files_aside(job: Job, store: GenerationStore, paths: Sequence[Path]) -> None:
    """Rename half-written files: a script that finds one, perhaps newer than ours, would fail on it."""
    for path in store.torn(paths):
        torn = _set_aside(path).name
        lifecycle.remark(job, fact(Happened.CUT_SHORT_FILE, name=path.name, torn=torn), actor="launcher")


def _set_halves_aside(
    job: Job, watcher: Watcher, store: GenerationStore, folder: JobFolder, generation: Generation | None
) -> None:
    """Rename the files of a newer step that lacks files which the kept checkpoints have.

    A script that loads the newest file of each kind would continue with the model of one step and the optimizer of
    another, or fail at every retry.  A newer step that lacks nothing stays: it is the script's own progress.
    """
    if generation is None or generation.source != "script":
        return
    seen = max((file.seen[1] for file in generation.files if file.seen), default=0)
    own = {file.path for file in generation.files}
    kept = [{without_digits(file.path) for file in entry.own_files} for entry in store.list()]
    for save in group(watcher.signatures()).saves:
        is_newer = save.kind == "files" and save.written_ns > seen
        if is_newer and own.isdisjoint(save.files) and _is_half(save, kept):
            for path in sorted(save.files):
                torn = _set_aside(folder.root / path).name
                name = Path(path).name
                lifecycle.remark(
                    job, fact(Happened.LACKS_OTHER_FILES, name=name, torn=torn), actor="launcher"
                )


def _is_half(save: Save, kept: Sequence[set[str]]) -> bool:
    """Whether two or more kept checkpoints have some of a save's files (numbers left out), and all a further kind.

    One kept checkpoint shows no habit: its optimizer may be saved at some steps only.  The count of one kind does
    not matter: a job that continues on fewer devices writes fewer files of ranks.
    """
    files = set(map(without_digits, save.files))
    alike = [whole for whole in kept if whole & files]
    return len(alike) >= 2 and bool(set.intersection(*alike) - files)


def _set_aside(path: Path) -> Path:
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
