"""Chooses the checkpoint that an attempt starts from, and restores it where the script expects it."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from orchestrator.exceptions import OrchestratorError
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Job
from orchestrator.store.checkpoints.generations import GenerationStore, Skip
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.checkpoints.rewrites import without_digits
from orchestrator.store.checkpoints.saves import Save, group
from orchestrator.store.checkpoints.setting_aside import set_aside
from orchestrator.store.checkpoints.watcher import Watcher
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.watch.finished_files import read_finished_files


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint that an attempt starts from, and the paths that its script gets.

    ``path`` is a file or a folder, as the checkpoint is; ``folder`` is always a folder.
    """

    generation: Generation
    path: Path

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


class NoSoundCheckpoint(OrchestratorError):
    """All checkpoints of a job are damaged, and its owner does not want it to restart at step 0."""

    code = "no_sound_checkpoint"


def choose_checkpoint(job: Job, folder: JobFolder) -> Resume | None:
    """Find the newest checkpoint that verifies, and restore it where the script expects it.

    A newer one that does not verify is skipped and noted in the job's history.

    Raises:
        NoSoundCheckpoint: no checkpoint verifies, and the job may not restart at step 0.
    """
    if job.resume_job_id is not None and not GenerationStore(folder).list():
        _copy_checkpoints(settings.HOME.job(job.resume_job_id), folder)
    store = GenerationStore(folder)
    passed_over: list[Skip] = []
    generation = store.newest_verified(passed_over)
    for each in passed_over:
        lifecycle.remark(job, _fall_back(each, generation), actor="launcher")
    if passed_over and generation is None and not job.spec.begin_anew:
        raise NoSoundCheckpoint("all its checkpoints are damaged, and it may not restart from step 0.")
    if generation is not None:
        store.put_back(generation)
    watcher = Watcher(folder, job.spec.checkpoint_glob)
    _set_torn_folders_aside(job, watcher, folder, generation)
    verified = {folder.root / file.path for file in generation.files} if generation else set()
    _set_torn_files_aside(job, store, [path for path in watcher.files() if path not in verified])
    _set_halves_aside(job, watcher, store, folder, generation)
    if generation is None:
        return None
    return Resume(generation, store.resume_path(generation))


def _fall_back(passed_over: Skip, generation: Generation | None) -> Fact:
    return fact(
        Happened.FELL_BACK,
        checkpoint=passed_over.name,
        step=passed_over.step,
        why=passed_over.reason,
        to_checkpoint=generation.name if generation else None,
        to_step=generation.step if generation else None,
    )


def _set_torn_folders_aside(
    job: Job, watcher: Watcher, folder: JobFolder, generation: Generation | None
) -> None:
    """Rename folders that were being written at the kill: a trainer that looks for its last folder would use them."""
    own = {file.path for file in generation.files} if generation else set()
    seen = [file.seen[1] for file in generation.files if file.seen] if generation else []
    for save in group(watcher.signatures()).saves:
        is_newer = save.kind == "folder" and save.written_ns > max(seen, default=0)
        if is_newer and own.isdisjoint(save.files) and not _is_proven(save, folder):
            torn = set_aside(folder.root / save.path).name
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
        torn = set_aside(path).name
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
                torn = set_aside(folder.root / path).name
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


def _copy_checkpoints(source: JobFolder, into: JobFolder) -> None:
    """Copy the checkpoints of a retried job's parent into its own folder."""
    for name in ("generations", "checkpoints"):
        origin, target = getattr(source, name), getattr(into, name)
        if origin.exists() and not any(target.iterdir()):
            shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True)
