"""How a model would train, before its submit: a short-lived planner process in a job's sandbox.

Web processes never load torch or run users' code.  Answers are cached by what they depend on: code, arguments,
devices and memory.
"""

import hashlib
import json
import logging
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser

from berth.shared.language import text
from orchestrator.jobs import datasets, plan_accuracy
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.jobs.training_plans import read_candidates
from orchestrator.models import Device, Job, Network
from orchestrator.spec.data_names import fill_placeholders
from orchestrator.spec.job_spec import JobSpec
from orchestrator.spec.remote_data import looks_remote
from orchestrator.store.bundles import bundles
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.protocol.records import read_record, write_record
from orchestrator.supervisor.spawn import SpawnFailed, spawn

logger = logging.getLogger(__name__)

PLANNER = settings.BASE_DIR / "training" / "plan" / "__main__.py"
ENTRY = settings.BASE_DIR / "training" / "entry.py"
LONGEST_S = 30.0
_POLL_S = 0.02
_MEMORY_BYTES = 8 << 30
_LOG_BYTES = 1 << 20
_ANSWER_BYTES = 1 << 20
_MOST_ANSWERS = 500


class DeviceCountPreview(TypedDict):
    """How a model would train on a number of devices."""

    gpus: int
    fits: bool
    chosen: Mapping[str, Any] | None  # of the candidates
    why: str
    usable_bytes: int | None
    candidates: Sequence[Mapping[str, Any]]  # as ``training_plans.read_candidates`` returns them


class TrainingPreview(TypedDict):
    """How a model would train, for each number of devices that the planner answered for."""

    error: str  # why there is no answer; empty: there is one
    devices: list[DeviceCountPreview]


NO_PREVIEW: TrainingPreview = {"error": "", "devices": []}


def preview(
    user: AbstractBaseUser, spec: JobSpec, job: Job, *, longest_s: float | None = None
) -> TrainingPreview | None:
    """The candidates for each number of devices up to the job's; None for scripts, and for code or data not here yet."""
    if spec.kind != "model" or not job.bundle or any(map(looks_remote, spec.datasets)):
        return None
    counts = _counts(spec.gpus)
    memory_bytes = _device_memory(job)
    named = (datasets.resolve(reference, user) for reference in spec.datasets)
    registered = {dataset: datasets.checked_path(dataset) for dataset in named}
    data = dict(zip(datasets.names_in_a_job(list(registered)), registered.values(), strict=True))
    arguments = fill_placeholders(spec.args, datasets.placeholders(registered))
    spec = spec.model_copy(update={"args": arguments})
    asked = [job.bundle, spec.entrypoint, spec.args, counts, memory_bytes, sorted(map(str, data.values()))]
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]
    folder = settings.HOME.root / "plans"
    cached = folder / f"{key}.json"
    answer: Mapping[str, Any] | None = read_record(cached)
    if answer is None:
        root = folder / f"{key}.{secrets.token_hex(4)}"
        answer = _run(
            root, spec, job, counts, memory_bytes, data, LONGEST_S if longest_s is None else longest_s
        )
        if "tables" in answer:
            write_record(cached, dict(answer))
            _forget_old(folder)
    names = Device.objects.filter(pool=job.pool_id).order_by("index").values_list("name", flat=True)
    return _show(answer, counts, plan_accuracy.correction_for(names[0]) if names else None)


def _counts(gpus: int) -> list[int]:
    """The requested number of devices, and the powers of two below it."""
    counts, count = [], 1
    while count < gpus:
        counts.append(count)
        count *= 2
    return [*counts, gpus]


def _device_memory(job: Job) -> int | None:
    """The memory that the job claims on each device, otherwise the memory of the pool's smallest device."""
    if job.claimed_bytes is not None:
        return job.claimed_bytes
    sizes = Device.objects.filter(pool=job.pool_id).exclude(kind="cpu").values_list("memory_bytes", flat=True)
    return min((size for size in sizes if size), default=None)


def _run(
    root: Path,
    spec: JobSpec,
    job: Job,
    counts: list[int],
    memory_bytes: int | None,
    data: dict[str, Path],
    longest_s: float,
) -> Mapping[str, Any]:
    """The planner's answer, or ``{"error": sentence}``; removes the planner's folder."""
    folder = AttemptFolder(root)
    try:
        _prepare(folder, spec, job, counts, memory_bytes, data)
        spawn(folder, python=sys.executable, secrets={})
        return _wait(folder, longest_s)
    except interpreters.DoesNotStart as error:
        return {"error": str(error)}
    except (SpawnFailed, OSError) as error:
        logger.warning("The planner did not start: %s", error)
        return {"error": text("The planner could not be started on this server.")}
    finally:
        _end(folder)


def _prepare(
    folder: AttemptFolder,
    spec: JobSpec,
    job: Job,
    counts: list[int],
    memory_bytes: int | None,
    data: dict[str, Path],
) -> None:
    work, output, checkpoints = (folder.root / name for name in ("work", "output", "checkpoints"))
    for path in (output, checkpoints, folder.logs, folder.errors, folder.finished, folder.orders):
        path.mkdir(parents=True, exist_ok=True)
    folder.metrics.touch()
    _place_code(work, spec, job)
    isolation.check()
    arguments = fill_placeholders(
        list(spec.args),
        {
            "checkpoint_dir": str(checkpoints),
            "output_dir": str(output),
        },
    )
    ask = ["--devices", *map(str, counts), "--out", str(_answer(folder))]
    ask += ["--memory", str(memory_bytes)] if memory_bytes else []
    record = {
        "v": 1,
        "job_id": str(job.pk),
        "number": 0,
        "nonce": secrets.token_hex(16),
        "python": sys.executable,
        "python_roots": interpreters.roots(sys.executable),
        "entry": str(ENTRY),
        "script": str(PLANNER),
        "args": [*ask, spec.script_name, *arguments],
        "env": {
            **spec.env,
            **{datasets.variable_of(name): str(path) for name, path in data.items()},
            "CUDA_VISIBLE_DEVICES": "",
        },
        "ranks": 1,
        "home": str(settings.HOME.root),
        "work": str(work),
        "checkpoints": str(checkpoints),
        "output": str(output),
        "read_only": [str(path) for path in data.values()],
        "sandbox": {
            "level": isolation.level(),
            "network": "none" if job.pool.network == Network.NONE else "host",
        },
        "grace_s": 0,
        "limits": {"log_bytes": _LOG_BYTES, "memory_bytes": _MEMORY_BYTES},
        "hang_timeout_s": None,
        "gpu_memory_fraction": None,
    }
    write_record(folder.launch, record)


def _place_code(work: Path, spec: JobSpec, job: Job) -> None:
    """Write the script that came with the question; other code is on the server already."""
    if spec.source is not None and spec.source.text is not None:
        path = work / spec.script_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(spec.source.text.encode(errors="surrogatepass"))
        return
    bundles.materialise(settings.HOME.bundles, job.bundle, work)


def _answer(folder: AttemptFolder) -> Path:
    return folder.root / "output" / "plan.json"


def _wait(folder: AttemptFolder, longest_s: float) -> Mapping[str, Any]:
    deadline_s = time.monotonic() + longest_s
    while read_record(folder.exit) is None:
        if time.monotonic() > deadline_s:
            return {
                "error": text("The planner did not finish within {longest_s:.0f} s.", longest_s=longest_s)
            }
        time.sleep(_POLL_S)
    path = _answer(folder)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _ANSWER_BYTES:
        detail = (read_record(folder.exit) or {}).get("detail")
        return {"error": text("The planner gave no answer. {detail}", detail=detail or "").strip()}
    return read_record(path) or {"error": text("The planner's answer cannot be read.")}


def _end(folder: AttemptFolder) -> None:
    """Stop the planner if it still runs, then remove its folder."""
    if folder.supervisor.exists() and read_record(folder.exit) is None:
        order_stop(folder, "timeout", 0)
        deadline_s = time.monotonic() + 5
        while read_record(folder.exit) is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    shutil.rmtree(folder.root, ignore_errors=True)


def _show(
    answer: Mapping[str, Any], counts: list[int], correction: plan_accuracy.Correction | None
) -> TrainingPreview:
    """The chosen and considered plans by number of devices; user code wrote them, so every value is checked."""
    tables = answer.get("tables")
    if not isinstance(tables, dict):
        return {"error": str(answer.get("error", ""))[:1000], "devices": []}
    return {
        "error": "",
        "devices": [
            _show_table(count, table, correction) for count in counts if (table := tables.get(str(count)))
        ],
    }


def _show_table(count: int, table: object, correction: plan_accuracy.Correction | None) -> DeviceCountPreview:
    table = table if isinstance(table, dict) else {}
    candidates = read_candidates(table.get("candidates"))
    if correction is not None:
        candidates = plan_accuracy.corrected_candidates(candidates, correction)
    chosen = candidates[0] if candidates and isinstance(table.get("chosen"), dict) else None
    usable = table.get("usable_bytes")
    return {
        "gpus": count,
        "fits": chosen is not None,
        "chosen": chosen,
        "why": str(table.get("why", ""))[:1000],
        "usable_bytes": usable if isinstance(usable, int) else None,
        "candidates": candidates,
    }


def _forget_old(folder: Path) -> None:
    answers = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in answers[:-_MOST_ANSWERS]:
        path.unlink(missing_ok=True)
