"""A job's checkpoints as people use them: request, find, download, delete."""

from contextlib import suppress
from pathlib import Path

from django.conf import settings

from orchestrator.exceptions import Conflict, NotFound, Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.live import wakeups
from orchestrator.models import Attempt, Checkpoint, Job, JobState
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.checkpoints.manifest import Generation


def order(job: Job, *, by: str) -> Job:
    """Ask a running job to save now (SIGUSR1); harmless to scripts that do not handle it.

    Raises:
        IllegalTransition: the job does not run.
    """
    job.refresh_from_db()
    attempt = Attempt.objects.filter(job=job, number=job.attempt_count).first()
    if (
        job.state != JobState.RUNNING
        or attempt is None
        or not engine_of(attempt).request_checkpoint(order_of(attempt))
    ):
        raise IllegalTransition(
            Sentence("The job is {state}; only a running job can save a checkpoint.", state=job.state)
        )
    lifecycle.remark(job, fact(Happened.CHECKPOINT_ASKED), actor=by)
    return job


def find(job: Job, step: str) -> Checkpoint:
    """Find the newest checkpoint of a step, or the one with this name.

    Raises:
        NotFound: the job has no such checkpoint.
    """
    rows = Checkpoint.objects.filter(job=job).order_by("-created_at", "-pk")
    is_step = step.isascii() and step.isdigit() and len(step) <= 18
    found = (rows.filter(step=int(step)).first() if is_step else None) or rows.filter(name=step).first()
    if found is None:
        raise NotFound(Sentence("The job has no checkpoint {step!r}.", step=step[:80]))
    return found


def on_disk(checkpoint: Checkpoint) -> Generation:
    """Find a checkpoint's folder and files.

    Raises:
        NotFound: the checkpoint is no longer on disk.
    """
    for generation in GenerationStore(settings.HOME.job(checkpoint.job_id)).list():
        if generation.name == checkpoint.name:
            return generation
    raise NotFound(Sentence("{checkpoint} is no longer on disk.", checkpoint=checkpoint.name))


def listed(job: Job) -> list[tuple[Checkpoint, Generation | None]]:
    """List the checkpoints of a job, oldest first, each with its files on disk."""
    there = {kept.name: kept for kept in GenerationStore(settings.HOME.job(job.pk)).list()}
    rows = Checkpoint.objects.filter(job=job).order_by("created_at", "pk")
    return [(row, there.get(row.name)) for row in rows]


def called(generation: Generation | None) -> str:
    """Return the script's name of a checkpoint; empty if the checkpoint is no longer on disk."""
    if generation is None:
        return ""
    if generation.source == "library":
        return generation.folder.name
    path = generation.resume or generation.own_files[0].path
    is_folder = all(file.path != path for file in generation.files)
    return path.removeprefix("checkpoints/").removeprefix("work/") + ("/" if is_folder else "")


def file_of(checkpoint: Checkpoint, path: str) -> tuple[Path, str]:
    """Find one file of a checkpoint: the checkpoint's folder, and the path in it.

    Raises:
        NotFound: the checkpoint has no such file, or is no longer on disk.
    """
    generation = on_disk(checkpoint)
    for file in generation.files:
        if file.path == path:
            return generation.folder, file.kept
    raise NotFound(
        Sentence("{checkpoint} has no file {path!r}.", checkpoint=checkpoint.name, path=path[:200])
    )


def remove(job: Job, checkpoint: Checkpoint, *, by: str) -> None:
    """Delete a checkpoint for good.

    Raises:
        Conflict: an attempt is starting, maybe from this checkpoint.
    """
    job.refresh_from_db()
    if job.state == JobState.STARTING:
        raise Conflict("An attempt is starting, maybe from this checkpoint; try again in a moment.")
    with suppress(NotFound, FileNotFoundError):  # already gone; delete the row too
        GenerationStore(settings.HOME.job(job.pk)).remove(on_disk(checkpoint))
    checkpoint.delete()
    deleted = fact(Happened.CHECKPOINT_DELETED, name=checkpoint.name, step=checkpoint.step)
    lifecycle.remark(job, deleted, actor=by)
    wakeups.publish(f"job:{job.pk}")
