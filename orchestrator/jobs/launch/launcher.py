"""Turns a placed attempt into a running supervisor: folders, code, checkpoint, launch record, then its engine."""

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch import isolation, trainers
from orchestrator.jobs.launch import record as launch_record
from orchestrator.jobs.launch import resume as resuming
from orchestrator.jobs.launch.engines import NotStarted, engine_of, order_of
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import Attempt, AttemptState, ExitKind, Job
from orchestrator.nodes.fence import raise_fence
from orchestrator.people import secrets as job_secrets
from orchestrator.sentences import say
from orchestrator.store.bundles import bundles
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import write_record

logger = logging.getLogger(__name__)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
PREPARING = "preparing"  # locked while a launch is at work


def start(attempt: Attempt) -> None:
    """Launch an attempt; harmless when it was launched before."""
    if lifecycle.claim_launch(attempt, timezone.now()):
        launch(attempt)


def launch(attempt: Attempt) -> None:
    """Launch an attempt that this process has claimed; nothing if the agent has given the launch up by now."""
    try:
        with preparing(folder_of(attempt)):
            _launch(attempt)
    except OSError as error:  # of the lock itself
        _give_up_unprepared(attempt, error)


def _launch(attempt: Attempt) -> None:
    """Launch under the lock, and hold it until the outcome is in the database: a free lock tells of a dead launch."""
    engine, order = engine_of(attempt), order_of(attempt)
    if engine.state(order) is Liveness.ENDED:
        return
    job = Job.objects.select_related("pool", "owner", "environment").get(pk=attempt.job_id)
    try:
        if not job.stop_wanted:
            prepare(job, attempt)
            job.refresh_from_db(fields=["stop_wanted"])
        if job.stop_wanted:  # nothing runs yet, so there is nothing to stop
            _give_up(attempt, ExitKind.CANCELLED, fact(Ended.STOPPED_BEFORE_START), retriable=False)
            return
        engine.start(order, job_secrets.reveal(job.owner, job.spec.secrets))
    except NotStarted as error:
        # The supervisor may still come; only its free lock proves that it will not. The agent watches the folder.
        logger.warning("%s", error)
        return
    except OrchestratorError as error:
        how = fact(Ended.COULD_NOT_START, error=str(error))
        _give_up(attempt, ExitKind.INFRA, how, retriable=False)
        return
    except OSError as error:
        _give_up_unprepared(attempt, error)
        return
    # The supervisor lives from here on: no failure may free its devices.
    lifecycle.run(attempt, started_at=timezone.now())


def stop(attempt: Attempt, *, reason: str, grace_s: float, saved: bool = False) -> bool:
    """Send the stop request to the supervisor; may be repeated until the exit record is there.

    False if there is no folder yet to write the order into.

    Args:
        saved: a checkpoint was kept since the first order, so the run need not write another.

    Raises:
        OSError: the order could not be written.
    """
    return engine_of(attempt).stop(order_of(attempt), reason=reason, grace_s=grace_s, saved=saved)


def is_preparing(attempt: Attempt) -> bool:
    """Whether a launch is preparing the attempt's folder, which takes minutes for a large checkpoint."""
    return _lock_state(attempt) is True


def is_dead(attempt: Attempt) -> bool:
    """Whether the launch of an attempt that NEVER_STARTED has proven to be over, so that no supervisor comes of it.

    Its free lock proves it once the lock is there; a launch that has not got so far may begin at any moment.
    """
    if _lock_state(attempt) is not False or engine_of(attempt).is_starting(order_of(attempt)):
        return False
    # The launch may have reached its end just before: that is in the database before the lock is free.
    return Attempt.objects.filter(pk=attempt.pk, state=AttemptState.LAUNCHING).exists()


def _lock_state(attempt: Attempt) -> bool | None:
    """Whether the lock of the attempt's launch is held; None if there is none yet."""
    try:
        fd = os.open(folder_of(attempt).root / PREPARING, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def forestall(attempt: Attempt, how: Fact) -> bool:
    """Prevent any later start of a supervisor; False if there is one.

    A supervisor that takes the lock later finds an exit record, and exits.
    """
    names = {"number": attempt.number, "nonce": attempt.nonce, "kind": ExitKind.INFRA}
    record = {**names, **how.as_json(), "detail": say(how)}
    return engine_of(attempt).forestall(order_of(attempt), record)


def folder_of(attempt: Attempt) -> AttemptFolder:
    return settings.HOME.job(attempt.job_id).attempt(attempt.number)


@contextmanager
def preparing(folder: AttemptFolder) -> Iterator[None]:
    """Hold the lock that says a launch is at work; it ends with our process."""
    folder.root.mkdir(parents=True, exist_ok=True)
    unseen = folder.root / f".{PREPARING}.{os.getpid()}"
    with unseen.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unseen.replace(folder.root / PREPARING)  # free for no moment: that would tell of a dead launch
        yield


def _give_up_unprepared(attempt: Attempt, error: OSError) -> None:
    logger.error("Launching attempt %s failed", attempt, exc_info=error)
    how = fact(Ended.COULD_NOT_PREPARE, error=error.strerror or str(error))
    _give_up(attempt, ExitKind.INFRA, how, retriable=True, no_room=error.errno in NO_ROOM)


def _give_up(attempt: Attempt, kind: ExitKind, how: Fact, *, retriable: bool, no_room: bool = False) -> None:
    ending = Ending(kind=kind, how=how, at=timezone.now(), retriable=retriable, no_room=no_room)
    lifecycle.end(attempt, ending)


def prepare(job: Job, attempt: Attempt) -> None:
    """Do everything up to the launch record; may be interrupted anywhere."""
    home_folder = settings.HOME.job(job.pk)
    folder = home_folder.attempt(attempt.number)
    _make_folders(home_folder, attempt)
    raise_fence(home_folder)
    if job.has_socket:
        folder.session.mkdir(mode=0o700, exist_ok=True)
    bundles.materialise(settings.HOME.bundles, job.bundle, home_folder.work)
    if attempt.number == 1:
        trainers.tell_how_to_resume(job, home_folder.work)
    resume = resuming.choose_checkpoint(job, home_folder)
    isolation.check()
    level = isolation.level()
    for place, node in _places_of(attempt, folder):
        write_record(place.launch, launch_record.describe(job, attempt, home_folder, resume, level, node))
    Attempt.objects.filter(pk=attempt.pk).update(
        sandbox_level=level,
        sandbox_walls=isolation.walls(in_image=job.spec.image is not None),
        resumed_from_step=resume.generation.step if resume else None,
        resumed_from=resume.generation.name if resume else "",
    )


def _places_of(attempt: Attempt, folder: AttemptFolder) -> list[tuple[AttemptFolder, str]]:
    """The folder of each server of a run over several, with the server's name; else the attempt's own."""
    if not attempt.nodes:
        return [(folder, "")]
    first, *others = attempt.nodes
    return [(folder, first), *((folder.part(node), node) for node in others)]


def _make_folders(job_folder: JobFolder, attempt: Attempt) -> None:
    for path in (job_folder.checkpoints, job_folder.output, job_folder.generations):
        path.mkdir(parents=True, exist_ok=True)
    for folder, _ in _places_of(attempt, job_folder.attempt(attempt.number)):
        for path in (folder.logs, folder.errors, folder.finished, folder.orders, folder.media):
            path.mkdir(parents=True, exist_ok=True)
        folder.metrics.touch()
