"""Turns a placed attempt into a running supervisor: folders, code, checkpoint, launch record, spawn.

The interface other engines will share: ``start(attempt)``, ``stop(attempt, grace_s)``.
"""

import errno
import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch import isolation
from orchestrator.jobs.launch import record as launch_record
from orchestrator.jobs.launch import resume as resuming
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import Attempt, ExitKind, Job
from orchestrator.people import secrets as job_secrets
from orchestrator.store import bundles
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.orders import order_stop
from orchestrator.supervisor.records import write_record
from orchestrator.supervisor.spawn import SpawnFailed, spawn

logger = logging.getLogger(__name__)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
PREPARING = "preparing"  # locked by a launch at work


def start(attempt: Attempt) -> None:
    """Launch an attempt; harmless when it was launched before."""
    if not lifecycle.claim_launch(attempt, timezone.now()):
        return
    job = Job.objects.select_related("pool", "owner").get(pk=attempt.job_id)
    try:
        with preparing(folder_of(attempt)):
            if not job.stop_wanted:
                prepare(job, attempt)
                job.refresh_from_db(fields=["stop_wanted"])
            if job.stop_wanted:  # nothing runs, so nothing must be stopped
                _give_up(attempt, ExitKind.CANCELLED, "Stopped before it began.", retriable=False)
                return
            secrets = job_secrets.reveal(job.owner, job.spec.secrets)
            spawn(folder_of(attempt), python=sys.executable, secrets=secrets)
    except SpawnFailed as error:
        # It may still come, and only its free lock proves that it will not: the agent looks at the folder.
        logger.warning("%s", error)
        return
    except OrchestratorError as error:
        _give_up(attempt, ExitKind.INFRA, f"Could not start: {error}", retriable=False)
        return
    except OSError as error:
        logger.exception("Launching attempt %s failed", attempt)
        text = f"Could not prepare the job's folder: {error.strerror or error}."
        _give_up(attempt, ExitKind.INFRA, text, retriable=True, no_room=error.errno in NO_ROOM)
        return
    # From here on the supervisor lives: nothing that fails may free its devices.
    lifecycle.run(attempt, started_at=timezone.now())


def stop(attempt: Attempt, *, reason: str, grace_s: float, saved: bool = False) -> bool:
    """Hand the wish to stop to the supervisor; may be repeated until the exit record is there.

    False where there is no folder yet to write it into.

    Args:
        saved: a checkpoint was kept since the first order, so the run need not go on for another.

    Raises:
        OSError: the order could not be written.
    """
    folder = folder_of(attempt)
    if not folder.root.exists():
        return False
    order_stop(folder, reason, grace_s, saved=saved)
    return True


def is_preparing(attempt: Attempt) -> bool:
    """Whether a launch is at work in the attempt's folder: a large checkpoint may take it minutes."""
    try:
        fd = os.open(folder_of(attempt).root / PREPARING, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def forestall(attempt: Attempt, detail: str) -> bool:
    """Make sure that no supervisor can come any more; False when one is there.

    Whoever takes the lock later finds an exit record, and leaves.
    """
    folder = folder_of(attempt)
    if not folder.root.is_dir():
        return True
    fd = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        record = {"number": attempt.number, "nonce": attempt.nonce, "kind": ExitKind.INFRA, "detail": detail}
        write_record(folder.exit, record)
        return True
    finally:
        os.close(fd)


def folder_of(attempt: Attempt) -> AttemptFolder:
    return settings.HOME.job(attempt.job_id).attempt(attempt.number)


@contextmanager
def preparing(folder: AttemptFolder) -> Iterator[None]:
    """A lock that ends with its process: the sign that this launch goes on."""
    folder.root.mkdir(parents=True, exist_ok=True)
    with (folder.root / PREPARING).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _give_up(
    attempt: Attempt, kind: ExitKind, detail: str, *, retriable: bool, no_room: bool = False
) -> None:
    ending = Ending(kind=kind, detail=detail, at=timezone.now(), retriable=retriable, no_room=no_room)
    lifecycle.end(attempt, ending)


def prepare(job: Job, attempt: Attempt) -> None:
    """Everything up to the launch record; may be cut short anywhere."""
    home_folder = settings.HOME.job(job.pk)
    folder = home_folder.attempt(attempt.number)
    _make_folders(home_folder, attempt)
    bundles.materialise(settings.HOME.bundles, job.bundle, home_folder.work)
    resume = resuming.choose_checkpoint(job, home_folder)
    isolation.check()
    level = isolation.level()
    write_record(folder.launch, launch_record.describe(job, attempt, home_folder, resume, level))
    Attempt.objects.filter(pk=attempt.pk).update(
        sandbox_level=level,
        sandbox_walls=isolation.walls(),
        resumed_from_step=resume.generation.step if resume else None,
        resumed_from=resume.generation.name if resume else "",
    )


def _make_folders(job_folder: JobFolder, attempt: Attempt) -> None:
    folder = job_folder.attempt(attempt.number)
    for path in (
        job_folder.checkpoints,
        job_folder.output,
        job_folder.generations,
        folder.logs,
        folder.errors,
        folder.finished,
        folder.orders,
    ):
        path.mkdir(parents=True, exist_ok=True)
    folder.metrics.touch()
