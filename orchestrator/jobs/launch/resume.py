"""Chooses the checkpoint that an attempt starts from, and restores it where the script expects it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from orchestrator.exceptions import OrchestratorError
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch.torn_saves import set_torn_saves_aside
from orchestrator.models import Job
from orchestrator.store.checkpoints.generations import GenerationStore, Skip
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.layout import JobFolder


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
    set_torn_saves_aside(job, folder, store, generation)
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


def _copy_checkpoints(source: JobFolder, into: JobFolder) -> None:
    """Copy the checkpoints of a retried job's parent into its own folder."""
    for name in ("generations", "checkpoints"):
        origin, target = getattr(source, name), getattr(into, name)
        if origin.exists() and not any(target.iterdir()):
            shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True)
