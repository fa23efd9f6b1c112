"""Turns a placed attempt into a running supervisor: folders, code, checkpoint, launch record, spawn.

The interface other engines will share: ``start(attempt)``, ``stop(attempt, grace_s)``.
"""

import errno
import fcntl
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from orchestrator import datasets, isolation, job_secrets, lifecycle, training_plans
from orchestrator.exceptions import OrchestratorError
from orchestrator.lifecycle import Ending
from orchestrator.models import Attempt, Dataset, Device, ExitKind, Job, Network
from orchestrator.spec import JobSpec, fill_placeholders
from orchestrator.store import bundles
from orchestrator.store.checkpoints import GenerationStore, Skip
from orchestrator.store.layout import JobFolder
from orchestrator.store.manifest import Generation
from orchestrator.store.watcher import Watcher
from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.orders import order_stop
from orchestrator.supervisor.records import write_record
from orchestrator.supervisor.spawn import SpawnFailed, spawn

logger = logging.getLogger(__name__)

LOG_BYTES_PER_RANK = 256 * 1024**2
ENTRY = settings.BASE_DIR / "training" / "entry.py"
CONTEXT_BYTES = 512 * 1024**2  # of CUDA with the libraries that torch loads, as a rule
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
PREPARING = "preparing"  # locked by a launch at work
MODEL_RUNNER = settings.BASE_DIR / "training" / "__main__.py"


class CannotLaunch(OrchestratorError):
    """The attempt cannot be started, and trying again would not help."""

    code = "cannot_launch"
    status = 422


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint an attempt starts from, and the path a script is told."""

    generation: Generation
    path: Path


class NoSoundCheckpoint(OrchestratorError):
    """All that a job kept is damaged, and its owner would rather look than lose the work (F57)."""

    code = "no_sound_checkpoint"


def start(attempt: Attempt) -> None:
    """Launch an attempt; harmless when it was launched before."""
    if not lifecycle.claim_launch(attempt, timezone.now()):
        return
    job = Job.objects.select_related("pool", "owner").get(pk=attempt.job_id)
    try:
        with _preparing(_folder(attempt)):
            if not job.stop_wanted:
                _prepare(job, attempt)
                job.refresh_from_db(fields=["stop_wanted"])
            if job.stop_wanted:  # nothing runs, so nothing must be stopped
                _give_up(attempt, ExitKind.CANCELLED, "Stopped before it began.", retriable=False)
                return
            secrets = job_secrets.reveal(job.owner, job.spec.secrets)
            spawn(_folder(attempt), python=sys.executable, secrets=secrets)
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
    folder = _folder(attempt)
    if not folder.root.exists():
        return False
    order_stop(folder, reason, grace_s, saved=saved)
    return True


def is_preparing(attempt: Attempt) -> bool:
    """Whether a launch is at work in the attempt's folder: a large checkpoint may take it minutes."""
    try:
        fd = os.open(_folder(attempt).root / PREPARING, os.O_RDONLY | os.O_CLOEXEC)
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
    folder = _folder(attempt)
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


def _folder(attempt: Attempt) -> AttemptFolder:
    return settings.HOME.job(attempt.job_id).attempt(attempt.number)


@contextmanager
def _preparing(folder: AttemptFolder) -> Iterator[None]:
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


def _prepare(job: Job, attempt: Attempt) -> None:
    """Everything up to the launch record; may be cut short anywhere."""
    home_folder = settings.HOME.job(job.pk)
    folder = home_folder.attempt(attempt.number)
    _make_folders(home_folder, attempt)
    bundles.materialise(settings.HOME.bundles, job.bundle, home_folder.work)
    resume = _choose_checkpoint(job, attempt, home_folder)
    isolation.check()
    level = isolation.level()
    write_record(folder.launch, _launch_record(job, attempt, home_folder, resume, level))
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


def _choose_checkpoint(job: Job, attempt: Attempt, folder: JobFolder) -> Resume | None:
    """The newest checkpoint that verifies, put back where the script expects it.

    A newer one that does not verify is passed over, and the job's history says so (F54-F56).
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


def _launch_record(
    job: Job, attempt: Attempt, folder: JobFolder, resume: Resume | None, level: int
) -> dict[str, Any]:
    spec = job.spec
    devices = [
        lease.device
        for lease in attempt.leases.filter(ended_at=None).select_related("device").order_by("rank")
    ]
    data = {dataset.name: datasets.checked_path(dataset) for dataset in _datasets(spec)}
    values = _placeholder_values(job, folder, data, resume)
    arguments = [*spec.args, *(spec.resume_args if resume and attempt_resumes(job, attempt) else [])]
    arguments = fill_placeholders(arguments, values)
    if spec.kind == "model":
        script, arguments = str(MODEL_RUNNER), [spec.entrypoint, *_length(spec), *arguments]
    else:
        script = spec.entrypoint
    return {
        "v": 1,
        "job_id": str(job.pk),
        "number": attempt.number,
        "nonce": attempt.nonce,
        "python": _interpreter(job, spec),
        "entry": str(ENTRY),
        "script": script,
        "args": arguments,
        "env": _environment(job, attempt, folder, devices, data, resume),
        "ranks": len(devices),
        "launcher": spec.launcher,
        "home": str(settings.HOME.root),
        "work": str(folder.work),
        "checkpoints": str(folder.checkpoints),
        "output": str(folder.output),
        "read_only": [str(path) for path in data.values()] + ([str(resume.path)] if resume else []),
        "device_nodes": sorted({node for device in devices for node in device.nodes}),
        "sandbox": {"level": level, "network": "none" if job.pool.network == Network.NONE else "host"},
        "grace_s": spec.grace_period_s,
        "limits": {"log_bytes": LOG_BYTES_PER_RANK, **isolation.limits(spec, len(devices))},
        "hang_timeout_s": spec.hang_timeout_s,
        "gpu_memory_fraction": _memory_fraction(attempt),
    }


def _length(spec: JobSpec) -> list[str]:
    """Options that end a model's training at the job's steps; the job's own options come later and win.

    No epoch is without a step, so as many epochs as steps are never too few.
    """
    if spec.total_steps is None:
        return []
    return ["--epochs", str(spec.total_steps), "--max-steps", str(spec.total_steps)]


def _memory_fraction(attempt: Attempt) -> float | None:
    """The part of each GPU that torch may allocate; None where the job has whole devices (F86).

    The claim is what the driver shows of the rank, so the CUDA context, which torch does not count, comes off it.
    """
    shares = attempt.leases.filter(ended_at=None, memory_bytes__isnull=False).select_related("device")
    return min(
        (
            min(1.0, allocator_bytes(lease.memory_bytes) / lease.device.memory_bytes)
            for lease in shares
            if lease.memory_bytes and lease.device.memory_bytes
        ),
        default=None,
    )


def allocator_bytes(claim_bytes: int) -> int:
    """What is left of a claim for torch's allocator."""
    return claim_bytes - min(CONTEXT_BYTES, claim_bytes // 4)


def attempt_resumes(job: Job, attempt: Attempt) -> bool:
    """Whether this attempt gets ``resume_args``: from the second on, and a retry that resumes its parent."""
    return attempt.number > 1 or job.resume_job_id is not None


def _datasets(spec: JobSpec) -> list[Dataset]:
    return [datasets.resolve(reference) for reference in spec.datasets]


def _placeholder_values(
    job: Job, folder: JobFolder, data: dict[str, Path], resume: Resume | None
) -> dict[str, str]:
    values = {
        "checkpoint_dir": str(folder.checkpoints),
        "output_dir": str(folder.output),
        **{f"dataset:{name}": str(path) for name, path in data.items()},
    }
    if resume:
        values["checkpoint"] = str(resume.path)
    if job.array_index is not None:
        values["array_index"] = str(job.array_index)
    return values


def _interpreter(job: Job, spec: JobSpec) -> str:
    """The real interpreter that runs the job; a name must be registered with the pool."""
    if spec.python is None:
        return sys.executable
    path = job.pool.pythons.get(spec.python)
    if not path or not os.access(path, os.X_OK):
        raise CannotLaunch(f"Pool {job.pool_id}'s interpreter {spec.python!r} is not there any more.")
    return str(path)


def _environment(
    job: Job,
    attempt: Attempt,
    folder: JobFolder,
    devices: list[Device],
    data: dict[str, Path],
    resume: Resume | None,
) -> dict[str, str]:
    environment = {
        **job.spec.env,
        "BERTH_CHECKPOINT_DIR": str(folder.checkpoints),
        "BERTH_OUTPUT_DIR": str(folder.output),
        "BERTH_METRICS_FILE": str(folder.attempt(attempt.number).metrics),
    }
    for name, path in data.items():
        environment[datasets.variable_of(name)] = str(path)
    if resume:
        environment["BERTH_RESUME_FROM"] = str(resume.path)
    if job.array_index is not None:
        environment["BERTH_ARRAY_INDEX"] = str(job.array_index)
    environment |= training_plans.environment(job, attempt)
    gpus = [device for device in devices if device.kind == "gpu"]
    # An empty list hides every GPU from a job on CPU slots.
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.id for device in gpus)
    return environment
