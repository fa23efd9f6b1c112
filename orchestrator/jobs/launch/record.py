"""The record that tells a supervisor what to run: launch.json, see docs/protocol.md."""

import errno
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NotRequired, TypedDict

from django.conf import settings

from orchestrator.jobs import (
    caches,
    datasets,
    exchanges,
    fetches,
    memory_claims,
    shared_models,
    training_plans,
)
from orchestrator.jobs.launch import images, interpreters, isolation, own_programs, session_programs, trainers
from orchestrator.jobs.launch.images import ImageRecord, Inside
from orchestrator.jobs.launch.resume import Resume
from orchestrator.jobs.launch.start import PROJECT_FILES, SRC, Started, python_of, script_path, started
from orchestrator.jobs.planned_memory import CONTEXT_BYTES
from orchestrator.live import readings as live
from orchestrator.models import Attempt, Dataset, Device, Environment, EnvironmentState, Job, Lease, Network
from orchestrator.spec.data_names import fill_placeholders
from orchestrator.spec.job_spec import JobSpec
from orchestrator.spec.remote_data import looks_remote
from orchestrator.store.layout import JobFolder

LOG_BYTES_PER_RANK = 256 * 1024**2
ENTRY = settings.BASE_DIR / "training" / "entry.py"
MODEL_RUNNER = settings.BASE_DIR / "training" / "__main__.py"


class SandboxRecord(TypedDict):
    level: int
    network: str


class LaunchRecord(TypedDict):
    """``launch.json``; what each field means: docs/protocol.md."""

    v: int
    job_id: str
    number: int
    nonce: str
    python: str
    python_roots: list[str]
    entry: str
    starts_as: str
    script: str
    args: list[str]
    env: dict[str, str]
    ranks: int
    devices: int
    threads: int
    launcher: str
    home: str
    work: str
    cwd: str
    checkpoints: str
    output: str
    read_only: list[str]
    writable: list[str]
    device_nodes: list[str]
    sandbox: SandboxRecord
    grace_s: float
    limits: dict[str, int | None]
    hang_timeout_s: float | None
    gpu_memory_fraction: float | None
    data: dict[str, str]
    nodes: int
    node_rank: int
    first_rank: int
    image: NotRequired[ImageRecord]  # of a job in a container image
    packages: NotRequired[str]  # the name of the job's environment, by which another server finds its own


def describe(
    job: Job, attempt: Attempt, folder: JobFolder, resume: Resume | None, level: int, node: str = ""
) -> LaunchRecord:
    """Return the content of ``launch.json`` for an attempt with prepared folders and code.

    Args:
        node: the server whose part this is, of a run over several.

    Raises:
        CannotLaunch, Malformed, Impossible, Unavailable: something that the job refers to is gone.
    """
    spec = job.spec
    leases = list(attempt.leases.filter(ended_at=None).select_related("device").order_by("rank"))
    here = [lease for lease in leases if not node or lease.device.node == node]
    devices = [lease.device for lease in here]
    registered = {dataset: datasets.checked_path(dataset) for dataset in _datasets(job)}
    names = datasets.names_in_a_job(list(registered))
    data = dict(zip(names, registered.values(), strict=True))
    data |= fetches.paths_of(job)
    values = _placeholder_values(job, folder, data, resume) | datasets.placeholders(registered)
    arguments = [*spec.args, *(spec.resume_args if resume and _resumes(job, attempt) else [])]
    arguments = fill_placeholders(arguments, values)
    run = started(spec, arguments, _command(job, fill_placeholders(spec.command, values)))
    if spec.kind == "model":
        run = {
            "starts_as": "script",
            "script": str(MODEL_RUNNER),
            "args": [script_path(spec), *_length(spec), *arguments],
        }
    ranks = 1 if spec.runs_once else len(devices)
    image = _image(job, run, ranks, level, devices)
    python, roots, entry = (image.python, [], str(ENTRY)) if image else _interpreter(job, spec)
    attempt_folder = folder.attempt(attempt.number)
    if spec.program is not None:
        run = session_programs.started(job, spec, python, attempt_folder)
    exchange = exchanges.of_job(job)
    cache = caches.folder_of(job)
    if cache is not None:
        shared_models.show_in(cache)
    record: LaunchRecord = {
        "v": 1,
        "job_id": str(job.pk),
        "number": attempt.number,
        "nonce": attempt.nonce,
        "python": python,
        "python_roots": roots,
        "entry": entry,
        "starts_as": run["starts_as"],
        "script": run["script"],
        "args": run["args"],
        "env": {
            **(image.env if image else {}),
            **caches.variables(cache),
            **_path_of_project(job, folder, image),
            **_environment(job, attempt, folder, devices, data, resume),
            **(session_programs.variables(job, attempt_folder) if spec.has_socket else {}),
            **exchanges.variables(exchange),
        },
        "ranks": ranks,
        "devices": len(devices),
        "threads": isolation.threads(spec, devices),
        "launcher": spec.launcher,
        "home": str(settings.HOME.root),
        "work": str(folder.work),
        "cwd": str(folder.work / spec.folder),
        "checkpoints": str(folder.checkpoints),
        "output": str(folder.output),
        "read_only": [
            *map(str, data.values()),
            *([str(resume.path)] if resume else []),
            *(map(str, shared_models.folders()) if cache else []),
            *(map(str, exchange.read_only) if exchange else []),
        ],
        "writable": [
            *([str(cache)] if cache else []),
            *([str(attempt_folder.session)] if spec.has_socket else []),
            *(map(str, exchange.writable) if exchange else []),
        ],
        "device_nodes": sorted({node for device in devices for node in device.nodes}),
        "sandbox": {"level": level, "network": "none" if job.pool.network == Network.NONE else "host"},
        "grace_s": spec.grace_period_s,
        "limits": {"log_bytes": LOG_BYTES_PER_RANK, **isolation.limits(spec, len(devices))},
        "hang_timeout_s": spec.hang_timeout_s,
        "gpu_memory_fraction": _memory_fraction(job, leases),
        "data": {datasets.full_name(dataset): str(path) for dataset, path in registered.items()},
        "nodes": len(attempt.nodes) or 1,
        "node_rank": attempt.nodes.index(node) if node else 0,
        "first_rank": here[0].rank if node else 0,
    }
    if image is not None:
        record["image"] = image.record
    elif job.environment is not None:
        record["packages"] = job.environment.key
    return record


def _command(job: Job, words: list[str]) -> list[str]:
    """The words of a command, whose program may be one of the job's own project."""
    if not words:
        return words
    return own_programs.python_command(words, job.spec.folder, settings.HOME.bundles / job.bundle) or words


def _image(job: Job, run: Started, ranks: int, level: int, devices: list[Device]) -> Inside | None:
    """How the job starts inside of its image; None without one.

    Raises:
        CannotLaunch: not there, or not here.
        OSError: the image is no longer there; it is fetched again.
    """
    row = job.environment
    if row is None or not row.image:
        return None
    try:
        found = images.read(row.key)
    except FileNotFoundError:
        raise _gone(row, "the image of this job is no longer there") from None
    has_gpu = any(device.kind == "gpu" for device in devices)
    return images.inside(found, run, ranks=ranks, level=level, has_gpu=has_gpu)


def _gone(row: Environment, words: str) -> FileNotFoundError:
    """Have an environment made again that is not there any more."""
    Environment.objects.filter(pk=row.pk, state=EnvironmentState.READY).update(state=EnvironmentState.WAITING)
    return FileNotFoundError(errno.ENOENT, words)


def _path_of_project(job: Job, folder: JobFolder, image: Inside | None = None) -> dict[str, str]:
    """The variable that makes the packages of a project importable that keeps them below ``src``."""
    places = dict.fromkeys([job.spec.folder, "."])
    bundle = settings.HOME.bundles / job.bundle
    found = [
        place
        for place in places
        if (bundle / place / SRC).is_dir()
        and any((bundle / place / name).is_file() for name in PROJECT_FILES)
    ]
    own = [image.env["PYTHONPATH"]] if image and image.env.get("PYTHONPATH") else []
    return (
        {"PYTHONPATH": ":".join([*(str(folder.work / place / SRC) for place in found), *own])}
        if found
        else {}
    )


def _length(spec: JobSpec) -> list[str]:
    """Options that end a model's training at the job's steps; the job's own options follow and win.

    Every epoch has at least one step, so as many epochs as steps are enough.
    """
    if spec.total_steps is None:
        return []
    return ["--epochs", str(spec.total_steps), "--max-steps", str(spec.total_steps)]


def _memory_fraction(job: Job, leases: Iterable[Lease]) -> float | None:
    """The share of each GPU that torch may allocate; None for whole devices.

    A claim covers all memory of a rank, so the CUDA context, which torch does not count, is subtracted.
    """
    return min(
        (
            min(1.0, allocator_bytes(_ceiling_bytes(job, lease)) / lease.device.memory_bytes)
            for lease in leases
            if lease.memory_bytes and lease.device.memory_bytes
        ),
        default=None,
    )


def _ceiling_bytes(job: Job, lease: Lease) -> int:
    """The memory that a rank may hold: its claim, and up to its limit what nobody else on the device has claimed."""
    claim = lease.memory_bytes or 0
    most = memory_claims.most_bytes(job, claim)
    if most <= claim:
        return claim
    tenants = Lease.objects.active().filter(device=lease.device_id)
    claimed = sum(each or 0 for each in tenants.values_list("memory_bytes", flat=True))
    entry = live.read_now().device(lease.device_id)
    foreign = entry["foreign_bytes"] if entry else 0
    return max(claim, min(most, claim + lease.device.memory_bytes - claimed - foreign))


def allocator_bytes(claim_bytes: int) -> int:
    """The share of a claim that remains for torch's allocator."""
    return claim_bytes - min(CONTEXT_BYTES, claim_bytes // 4)


def _resumes(job: Job, attempt: Attempt) -> bool:
    """Whether an attempt gets ``resume_args``: the second and later ones, and a retry that resumes its parent."""
    return attempt.number > 1 or job.resume_job_id is not None


def _datasets(job: Job) -> list[Dataset]:
    named = job.spec.datasets
    return [datasets.resolve(reference, job.owner) for reference in named if not looks_remote(reference)]


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
        values["checkpoint_folder"] = str(resume.folder)
    if job.array_index is not None:
        values["array_index"] = str(job.array_index)
    return values


def _interpreter(job: Job, spec: JobSpec) -> tuple[str, list[str], str]:
    """The interpreter that runs the job, the folders that it needs, and the entry of its ranks.

    Raises:
        OSError: the packages of the job are no longer there; they are made again.
    """
    if job.environment is None:
        python = python_of(job.pool, spec)
        return python, interpreters.roots(python), str(ENTRY)
    built = settings.HOME.environments.built(job.environment.key)
    if not built.python.exists():
        raise _gone(job.environment, "the packages of this job are no longer there")
    below = job.environment.interpreter or sys.executable
    # Links lead from there to compiled modules, to the training library, and into Berth's own environment.
    shared = [str(built.root), str(settings.HOME.environments.bytecode), str(settings.BASE_DIR)]
    return str(built.python), [*interpreters.roots(below), *shared], str(built.entry)


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
        if trainers.may_resume(job, resume.generation):
            environment[trainers.GIVEN] = "1"
    if job.array_index is not None:
        environment["BERTH_ARRAY_INDEX"] = str(job.array_index)
    environment |= training_plans.environment(job, attempt)
    gpus = [device for device in devices if device.kind == "gpu"]
    # An empty list hides every GPU from a job on CPU slots.
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.id for device in gpus)
    return environment
