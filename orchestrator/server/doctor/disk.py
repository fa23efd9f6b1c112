"""Compare folders with the database; nothing is deleted, only moved to quarantine/."""

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from berth.shared.words import server_command
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import Attempt, AttemptState, Checkpoint, ExitKind, Job
from orchestrator.server.doctor.findings import Finding
from orchestrator.server.doctor.processes import end_attempt
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.checkpoints.manifest import Generation, NotVerified
from orchestrator.store.files.durable import sync_folder
from orchestrator.store.layout import JobFolder
from orchestrator.store.metrics.journal import COLUMN, column_path, lengths_after, read_state
from orchestrator.supervisor.protocol.records import read_record

LEAST_FREE_PERCENT = 5.0


def check_shut_folders() -> Iterator[Finding]:
    """Folders that cannot be listed; the other checks skip them."""
    for folder in _all_job_folders():
        if shut := _shut(folder):
            yield Finding(
                "F58",
                f"The folder {shut.relative_to(settings.HOME.root)} cannot be read.",
                "make it readable for its owner",
                partial(_open, folder),
            )


def _open(folder: Path) -> None:
    while shut := _shut(folder):
        shut.chmod(0o700)


def _shut(folder: Path) -> Path | None:
    if not _may_list(folder):
        return folder
    attempts = folder / "attempts"
    return attempts if attempts.is_dir() and not _may_list(attempts) else None


def _may_list(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=True)


def check_unknown_folders() -> Iterator[Finding]:
    """Job folders without a job in the database: made after a backup, or by hand."""
    for folder in _all_job_folders():
        job_id = _job_id(folder)
        if job_id is None or not Job.objects.filter(pk=job_id).exists():
            yield Finding(
                "F49",
                f"The database has no job for the folder jobs/{folder.name}.",
                "end its processes and move it to quarantine/",
                partial(_put_aside, folder),
            )


def _put_aside(folder: Path) -> None:
    _open(folder)
    for number in _attempt_numbers(folder):
        end_attempt(folder.name, number)
    put_aside(folder, folder.name)


def check_unknown_attempts() -> Iterator[Finding]:
    """Attempts on disk that the database does not count; their numbers must not be reused."""
    counts = dict(Job.objects.values_list("pk", "attempt_count"))
    for folder in _job_folders():
        job_id = _job_id(folder)
        if job_id is None or job_id not in counts:
            continue
        beyond = [number for number in _attempt_numbers(folder) if number > counts[job_id]]
        if beyond:
            yield Finding(
                "F48",
                f"Job {job_id} has folders up to attempt {max(beyond)}, the database counts {counts[job_id]}.",
                "end their processes and record them as lost, so that their numbers are not reused",
                partial(_count_as_lost, job_id, max(beyond)),
            )


def _count_as_lost(job_id: UUID, last: int) -> None:
    job = Job.objects.get(pk=job_id)
    now = timezone.now()
    for number in range(job.attempt_count, last + 1):
        if number:
            end_attempt(job_id, number)
    for attempt in Attempt.objects.live().filter(job=job):  # a later attempt exists, so this one is over
        lifecycle.end(attempt, Ending(kind=ExitKind.LOST, how=fact(Ended.NOT_IN_BACKUP), at=now))
    with transaction.atomic():
        job.refresh_from_db()
        for number in range(job.attempt_count + 1, last + 1):
            folder = settings.HOME.job(job_id).attempt(number)
            nonce = (read_record(folder.launch) or {}).get("nonce")
            Attempt.objects.create(
                job=job,
                number=number,
                nonce=str(nonce or "")[:32],
                state=AttemptState.ENDED,
                kind=ExitKind.LOST,
                ending=fact(Ended.NOT_IN_BACKUP).as_json(),
                created_at=now,
                ended_at=now,
            )
        Job.objects.filter(pk=job_id).update(attempt_count=last)
        lifecycle.remark(job, fact(Happened.ATTEMPTS_COUNTED, last=last), actor="doctor")


def check_missing_bundles() -> Iterator[Finding]:
    """Missing code of a waiting or running job."""
    for job in Job.objects.unfinished().only("name", "bundle"):
        if not (settings.HOME.bundles / job.bundle).is_dir():
            yield Finding(
                "F49",
                f"The code of {job} (bundle {job.bundle[:12]}…) is not on disk; restore it or cancel the job.",
            )


def check_missing_checkpoints() -> Iterator[Finding]:
    """Rows of checkpoints that are not on disk any more (F49)."""
    jobs = Checkpoint.objects.order_by("job_id").values_list("job_id", flat=True).distinct()
    for job_id in jobs:
        there = {generation.name for generation in GenerationStore(settings.HOME.job(job_id)).list()}
        missing = Checkpoint.objects.filter(job_id=job_id).exclude(name__in=there)
        for checkpoint in missing.select_related("job"):
            yield Finding(
                "F49",
                f"{checkpoint.name.capitalize()} of {checkpoint.job} is listed, but not whole on disk.",
                "strike it from the list",
                partial(_strike_checkpoint, checkpoint.pk),
            )


def _strike_checkpoint(checkpoint_id: int) -> None:
    Checkpoint.objects.filter(pk=checkpoint_id).delete()


def check_hashes() -> Iterator[Finding]:
    """Checkpoints that differ from their manifest; a resume skips them."""
    for folder in _job_folders():
        store = GenerationStore(JobFolder(folder))
        damaged: list[tuple[Generation, NotVerified]] = []
        sound = 0
        for generation in store.list():
            try:
                store.verify(generation)
                sound += 1
            except NotVerified as error:
                damaged.append((generation, error))
        for generation, reason in damaged:
            yield _damaged(folder.name, generation, reason, last=not sound)


def _damaged(job_name: str, generation: Generation, reason: NotVerified, *, last: bool) -> Finding:
    sentence = f"{generation.name.capitalize()} of job {job_name}: {reason}."
    if last and _would_rather_fail(job_name):
        # Without any checkpoint it would start at step 0, which its owner forbids.
        advice = "It stays, because the job must not restart without a checkpoint; cancel the job, or restore a backup."
        return Finding("F55", f"{sentence} {advice}")
    return Finding(
        "F55", sentence, "move it to quarantine/", partial(_put_generation_aside, job_name, generation)
    )


def _would_rather_fail(job_name: str) -> bool:
    job = Job.objects.unfinished().filter(pk=job_id).first() if (job_id := _uuid(job_name)) else None
    return job is not None and not job.spec_fields.get("begin_anew", True)


def _put_generation_aside(job_name: str, generation: Generation) -> None:
    put_aside(generation.folder, f"{job_name}-{generation.name.replace(' ', '-')}")
    job = Job.objects.filter(pk=job_id).first() if (job_id := _uuid(job_name)) else None
    if job is not None:
        Checkpoint.objects.filter(job=job, name=generation.name).delete()
        what = fact(Happened.CHECKPOINT_QUARANTINED, name=generation.name)
        lifecycle.remark(job, what, actor="doctor")


def check_metrics() -> Iterator[Finding]:
    """Metric columns hold all points of their journal."""
    for folder in _job_folders():
        metrics = JobFolder(folder).metrics
        if not metrics.is_dir():
            continue
        names, records = read_state(metrics)
        for (attempt, series), count in lengths_after(records, names).items():
            segments = range(len(names.bases(attempt, series)))
            paths = [column_path(metrics, attempt, series, segment) for segment in segments]
            stored = sum(path.stat().st_size // COLUMN.itemsize for path in paths if path.exists())
            if stored < count:
                yield Finding(
                    "I16",
                    f"Job {folder.name}, attempt {attempt}: {count - stored} points of "
                    f"{names.series[series]!r} are missing from their column.",
                )


def check_room() -> Iterator[Finding]:
    """A disk that is nearly full."""
    usage = shutil.disk_usage(settings.HOME.root)
    if usage.free < usage.total * LEAST_FREE_PERCENT / 100:
        yield Finding(
            "F52",
            f"The disk of {settings.HOME.root} is more than {100 - LEAST_FREE_PERCENT:.0f} % full. "
            f"Remove old jobs (`{server_command('clean_up')}`) or add space.",
        )


def _job_folders() -> list[Path]:
    return [folder for folder in _all_job_folders() if not _shut(folder)]


def _all_job_folders() -> list[Path]:
    jobs = settings.HOME.jobs
    return sorted(path for path in jobs.iterdir() if path.is_dir()) if jobs.is_dir() else []


def _job_id(folder: Path) -> UUID | None:
    return _uuid(folder.name)


def _uuid(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None


def _attempt_numbers(folder: Path) -> list[int]:
    attempts = folder / "attempts"
    if not attempts.is_dir():
        return []
    return sorted(int(path.name) for path in attempts.iterdir() if path.name.isdecimal())


def put_aside(folder: Path, name: str) -> Path:
    """Move a folder to ``quarantine/`` under a name with the time.

    Raises:
        OSError: the folder belongs to another user, or something is mounted in it.
    """
    quarantine: Path = settings.HOME.root / "quarantine"
    quarantine.mkdir(mode=0o700, exist_ok=True)
    at = datetime.now(tz=UTC).strftime("%Y%m%dT%H%M%S")
    if not folder.is_symlink() and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        folder.chmod(0o700)  # moving a folder writes into it, and its job may have made it read-only
    target = quarantine / f"{name}-{at}"
    folder.rename(target)
    sync_folder(quarantine)
    return target
