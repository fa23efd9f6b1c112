"""Chooses the checkpoint an attempt starts from, and puts it back where its script expects it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from orchestrator import lifecycle
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Job
from orchestrator.store.checkpoints import GenerationStore, Skip
from orchestrator.store.layout import JobFolder
from orchestrator.store.manifest import Generation
from orchestrator.store.watcher import Watcher


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint an attempt starts from, and the path a script is told."""

    generation: Generation
    path: Path


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
    _set_torn_files_aside(job, store, folder)
    if generation is None:
        return None
    return Resume(generation, store.resume_path(generation))


def _fallback_text(passed_over: Skip, generation: Generation | None) -> str:
    name = passed_over.name if passed_over.step is None else f"step {passed_over.step}"
    if generation is None:
        to = "the beginning"
    else:
        to = generation.name if generation.step is None else f"step {generation.step}"
    return f"Fell back from {name} to {to}: {passed_over.reason}."


def _set_torn_files_aside(job: Job, store: GenerationStore, folder: JobFolder) -> None:
    """A script that finds half a checkpoint, perhaps newer than ours, would fail on it."""
    watcher = Watcher(folder, job.spec_fields.get("checkpoint_glob"))
    for path in store.torn(watcher.files()):
        path.rename(path.with_name(f"{path.name}.torn"))
        lifecycle.remark(job, f"{path.name} was cut short while it was written; set aside.", actor="launcher")


def _copy_checkpoints(source: JobFolder, into: JobFolder) -> None:
    """Give a retried job its parent's checkpoints, as its own."""
    for name in ("generations", "checkpoints"):
        origin, target = getattr(source, name), getattr(into, name)
        if origin.exists() and not any(target.iterdir()):
            shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True)
