"""Chooses the checkpoint an attempt starts from, and puts it back where its script expects it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import FELL_TO_THE_BEGINNING
from orchestrator.models import Job
from orchestrator.store.checkpoints import GenerationStore, Skip
from orchestrator.store.durable import discard_folder
from orchestrator.store.layout import JobFolder
from orchestrator.store.manifest import Generation
from orchestrator.store.saves import Save, group
from orchestrator.store.watcher import Watcher
from orchestrator.supervisor.finished_files import read_finished_files


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint an attempt starts from, and the paths a script is told.

    ``path`` is a file where the checkpoint is a file, and a folder where it is a folder; ``folder`` is always one.
    """

    generation: Generation
    path: Path

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


class NoSoundCheckpoint(OrchestratorError):
    """All that a job kept is damaged, and its owner would rather look than lose the work (F57)."""

    code = "no_sound_checkpoint"


def choose_checkpoint(job: Job, folder: JobFolder) -> Resume | None:
    """The newest checkpoint that verifies, put back where the script expects it.

    A newer one that does not verify is passed over, and the job's history says so (F54-F56).

    Raises:
        NoSoundCheckpoint: none verifies, and the job asked not to begin anew.
    """
    if job.resume_job_id is not None and not GenerationStore(folder).list():
        _copy_checkpoints(settings.HOME.job(job.resume_job_id), folder)
    store = GenerationStore(folder)
    passed_over: list[Skip] = []
    generation = store.newest_verified(passed_over)
    for each in passed_over:
        lifecycle.remark(job, _fallback_text(each, generation), actor="launcher")
    if passed_over and generation is None and not job.spec_fields.get("begin_anew", True):
        raise NoSoundCheckpoint("none of its checkpoints can be trusted, and it asked not to begin anew.")
    if generation is not None:
        store.put_back(generation)
    watcher = Watcher(folder, job.spec_fields.get("checkpoint_glob"))
    _set_torn_folders_aside(job, watcher, folder, generation)
    _set_torn_files_aside(job, watcher, store)
    if generation is None:
        return None
    return Resume(generation, store.resume_path(generation))


def _fallback_text(passed_over: Skip, generation: Generation | None) -> str:
    name = passed_over.name if passed_over.step is None else f"step {passed_over.step}"
    if generation is None:
        return f"Fell back from {name}{FELL_TO_THE_BEGINNING}{passed_over.reason}."
    to = generation.name if generation.step is None else f"step {generation.step}"
    return f"Fell back from {name} to {to}: {passed_over.reason}."


def _set_torn_folders_aside(
    job: Job, watcher: Watcher, folder: JobFolder, generation: Generation | None
) -> None:
    """A trainer that looks for its last folder itself would find the one that was being written at the kill."""
    own = {file.path for file in generation.files} if generation else set()
    seen = [file.seen[1] for file in generation.files if file.seen] if generation else []
    for save in group(watcher.signatures()).saves:
        is_newer = save.kind == "folder" and save.written_ns > max(seen, default=0)
        if is_newer and own.isdisjoint(save.files) and not _is_proven(save, folder):
            path = folder.root / save.path
            discard_folder(path.with_name(f"{path.name}.torn"))
            path.rename(path.with_name(f"{path.name}.torn"))
            text = f"{path.name} was not finished when its writer was killed; renamed to {path.name}.torn."
            lifecycle.remark(job, text, actor="launcher")


def _is_proven(save: Save, folder: JobFolder) -> bool:
    """Whether the supervisor of an earlier attempt saw the whole folder finished."""
    numbers = [int(path.name) for path in (folder.root / "attempts").glob("[0-9]*") if path.name.isdecimal()]
    vouched = [read_finished_files(folder.attempt(number)) for number in sorted(numbers)[-2:]]
    return all(
        any(files.get(path) == signature for files in vouched) for path, signature in save.files.items()
    )


def _set_torn_files_aside(job: Job, watcher: Watcher, store: GenerationStore) -> None:
    """A script that finds half a checkpoint, perhaps newer than ours, would fail on it."""
    for path in store.torn(watcher.files()):
        path.rename(path.with_name(f"{path.name}.torn"))
        lifecycle.remark(job, f"{path.name} was cut short while it was written; set aside.", actor="launcher")


def _copy_checkpoints(source: JobFolder, into: JobFolder) -> None:
    """Give a retried job its parent's checkpoints, as its own."""
    for name in ("generations", "checkpoints"):
        origin, target = getattr(source, name), getattr(into, name)
        if origin.exists() and not any(target.iterdir()):
            shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True)
