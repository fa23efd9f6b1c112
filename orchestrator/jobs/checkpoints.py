"""What people do with a job's checkpoints: order one, fetch one, delete one."""

from contextlib import suppress
from pathlib import Path

from django.conf import settings

from orchestrator.exceptions import Conflict, NotFound
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.live import wakeups
from orchestrator.models import Checkpoint, Job, JobState
from orchestrator.store.checkpoints import GenerationStore
from orchestrator.store.manifest import Generation
from orchestrator.supervisor.orders import order_checkpoint


def order(job: Job, *, by: str) -> Job:
    """Ask a running job to save now (SIGUSR1); scripts that do not listen go on unharmed.

    Raises:
        IllegalTransition: it does not run.
    """
    job.refresh_from_db()
    folder = settings.HOME.job(job.pk).attempt(job.attempt_count)
    if job.state != JobState.RUNNING or not folder.root.is_dir():
        raise IllegalTransition(f"The job is {job.state}; only a running job can save a checkpoint.")
    order_checkpoint(folder)
    lifecycle.remark(job, "A checkpoint was asked for.", actor=by)
    return job


def find(job: Job, step: str) -> Checkpoint:
    """The newest checkpoint of a step, or the one with this name.

    Raises:
        NotFound: the job has none such.
    """
    rows = Checkpoint.objects.filter(job=job).order_by("-created_at", "-pk")
    is_step = step.isascii() and step.isdigit() and len(step) <= 18
    found = (rows.filter(step=int(step)).first() if is_step else None) or rows.filter(name=step).first()
    if found is None:
        raise NotFound(f"The job has no checkpoint {step[:80]!r}.")
    return found


def on_disk(checkpoint: Checkpoint) -> Generation:
    """A checkpoint's folder and files.

    Raises:
        NotFound: it is not on disk any more.
    """
    for generation in GenerationStore(settings.HOME.job(checkpoint.job_id)).list():
        if generation.name == checkpoint.name:
            return generation
    raise NotFound(f"The {checkpoint.name} is not on disk any more.")


def listed(job: Job) -> list[tuple[Checkpoint, Generation | None]]:
    """The checkpoints of a job, oldest first, with what is on disk of each."""
    there = {kept.name: kept for kept in GenerationStore(settings.HOME.job(job.pk)).list()}
    rows = Checkpoint.objects.filter(job=job).order_by("created_at", "pk")
    return [(row, there.get(row.name)) for row in rows]


def called(generation: Generation | None) -> str:
    """The file or folder that the script knows a checkpoint by; empty for what is no longer there."""
    if generation is None:
        return ""
    if generation.source == "library":
        return generation.folder.name
    path = generation.resume or generation.own_files[0].path
    is_folder = all(file.path != path for file in generation.files)
    return path.removeprefix("checkpoints/").removeprefix("work/") + ("/" if is_folder else "")


def file_of(checkpoint: Checkpoint, path: str) -> tuple[Path, str]:
    """The folder that a checkpoint is kept in, and where in it one of its files lies.

    Raises:
        NotFound: the checkpoint has no such file, or is not on disk any more.
    """
    generation = on_disk(checkpoint)
    for file in generation.files:
        if file.path == path:
            return generation.folder, file.kept
    raise NotFound(f"The {checkpoint.name} has no file {path[:200]!r}.")


def remove(job: Job, checkpoint: Checkpoint, *, by: str) -> None:
    """Delete a checkpoint for good.

    Raises:
        Conflict: an attempt is about to start, maybe from this one.
    """
    job.refresh_from_db()
    if job.state == JobState.STARTING:
        raise Conflict("An attempt is starting, maybe from this checkpoint; try again in a moment.")
    with suppress(NotFound, FileNotFoundError):  # gone already; the row goes too
        GenerationStore(settings.HOME.job(job.pk)).remove(on_disk(checkpoint))
    checkpoint.delete()
    what = checkpoint.name if checkpoint.step is None else f"{checkpoint.name} (step {checkpoint.step:,})"
    lifecycle.remark(job, f"Deleted {what}.", actor=by)
    wakeups.publish(f"job:{job.pk}")
