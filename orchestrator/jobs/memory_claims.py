"""How much memory a job claims on each of its devices: as typed, learned from earlier runs, planned, or all of it.

Runs that need equal memory have the same key: code, shape of the arguments, data sets, environment, number
of devices.  What they were seen to hold is kept with their leases, by the model of the device.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict
from uuid import UUID

from django.db.models import Max, Q

from orchestrator.jobs.planned_memory import Expected, expected, is_planned
from orchestrator.models import Attempt, AttemptState, Device, ExitKind, Job, JobState, Lease, Sharing
from orchestrator.spec.job_spec import GIB

RUNS_REMEMBERED = 20  # of a key and model; older ones say little about today's code of the driver
LEAST_MARGIN = 0.05
FEW_RUNS = 3  # with fewer, their spread says nothing yet ...
MARGIN_OF_FEW = 0.10  # ... so that the margin is at least this
GROWTH = 1.5  # a job that outgrew its claim comes back with so much more
LEAST_RUN_S = 60.0  # a run that ended earlier may not have reached its peak, unless it ended well
SLACK = 0.02  # for the driver's own buffers
LEAST_SLACK_BYTES = 64 * 2**20
ROWS_A_STATEMENT = 500

# Options that change how long or under which name a program runs, and not what it holds.
_WITHOUT_WEIGHT = frozenset(
    [
        "seed",
        "epochs",
        "num-epochs",
        "steps",
        "max-steps",
        "total-steps",
        "lr",
        "learning-rate",
        "weight-decay",
        "dropout",
        "momentum",
        "name",
        "run-name",
        "tag",
        "log-interval",
        "log-every",
        "save-every",
    ]
)
_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)([eE][+-]?\d+)?")


class ClaimSource(StrEnum):
    TYPED = "typed"
    LEARNED = "learned"
    PLANNED = "planned"  # of a model that never ran
    RAISED = "raised"  # it outgrew an earlier claim
    DEVICE = "whole device"


class ClaimRecord(TypedDict):
    """A claim as its job's row and REST have it."""

    bytes: int | None
    source: str
    error_percent: float | None
    runs: int


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """What a job claims on each of its devices."""

    memory_bytes: int | None  # None: the whole device
    source: ClaimSource
    error_percent: float | None = None  # the margin above the largest earlier peak; learned claims only
    runs: int = 0  # number of runs that it was learned from

    def as_json(self) -> ClaimRecord:
        return {
            "bytes": self.memory_bytes,
            "source": str(self.source),
            "error_percent": None if self.error_percent is None else round(self.error_percent, 1),
            "runs": self.runs,
        }


WHOLE_DEVICE = MemoryClaim(None, ClaimSource.DEVICE)


def claim_of(job: Job) -> MemoryClaim:
    """The claim of one job; see ``claims_of``."""
    return claims_of([job])[job.pk]


def claims_of(jobs: Iterable[Job]) -> dict[UUID, MemoryClaim]:
    """Compute what each job would claim if it started now, by job id; load the jobs with their pools."""
    jobs = list(jobs)
    sharing = {job.pool_id for job in jobs if job.pool.sharing == Sharing.LEARNED}
    # Fields as stored: ``job.spec`` validates them, 35 us a job, and every pass asks for the whole queue.
    keys = {
        job.pk: memory_key(job.spec_fields, job.bundle)
        for job in jobs
        if job.pool_id in sharing
        and job.spec_fields.get("gpu_memory_gib") is None
        and not job.spec_fields.get("max_gpus")  # memory on one number of devices says nothing of another
    }
    peaks = _peaks_by_model(set(keys.values()))
    plannable = {job.pk: (keys[job.pk], job.pool_id) for job in jobs if job.pk in keys and is_planned(job)}
    planned = expected(plannable.values()) if plannable else {}
    models = _models(sharing) if peaks else {}
    largest = _largest_devices({job.pool_id for job in jobs if job.claim_floor_bytes or job.pk in plannable})
    return {
        job.pk: _claim(
            job,
            peaks.get(keys.get(job.pk, ""), {}),
            models.get(job.pool_id, set()),
            largest,
            planned.get(plannable[job.pk]) if job.pk in plannable else None,
        )
        for job in jobs
    }


def refresh(jobs: Iterable[Job]) -> None:
    """Update the claims of queued jobs that changed since the last pass."""
    queued = {job.pk: job for job in jobs if job.state == JobState.QUEUED}
    shown: dict[MemoryClaim, ClaimRecord] = {}  # most of a long queue claim the same
    changed: dict[MemoryClaim, list[UUID]] = defaultdict(list)
    for job_id, claim in claims_of(queued.values()).items():
        job = queued[job_id]
        if claim not in shown:
            shown[claim] = claim.as_json()
        if job.memory_claim != shown[claim]:
            job.memory_claim = shown[claim]
            changed[claim].append(job_id)
    for claim, ids in changed.items():
        for begin in range(0, len(ids), ROWS_A_STATEMENT):
            rows = Job.objects.filter(pk__in=ids[begin : begin + ROWS_A_STATEMENT])
            rows.update(memory_claim=shown[claim])


def _claim(
    job: Job,
    peaks: Mapping[str, Sequence[int]],
    models: set[str],
    largest: Mapping[str, int],
    planned: Expected | None,
) -> MemoryClaim:
    gib = job.spec_fields.get("gpu_memory_gib")
    if gib is not None:
        claim = MemoryClaim(round(gib * GIB), ClaimSource.TYPED)
    # A job may land on any of the pool's device models, so each of them needs an earlier run.
    elif peaks and models <= peaks.keys():
        claim = max((learn(peaks[model]) for model in models), key=lambda each: each.memory_bytes or 0)
    elif planned is not None and planned.memory_bytes < largest.get(job.pool_id, 0):
        claim = MemoryClaim(planned.memory_bytes, ClaimSource.PLANNED, planned.error_percent, planned.runs)
    else:
        claim = WHOLE_DEVICE
    floor = job.claim_floor_bytes
    if floor is None or claim.memory_bytes is None or floor <= claim.memory_bytes:
        return claim
    if floor >= largest.get(job.pool_id, 0):
        return WHOLE_DEVICE
    return MemoryClaim(floor, ClaimSource.RAISED)


def learn(peaks: Sequence[int]) -> MemoryClaim:
    """Claim the largest peak and a margin: the spread of the earlier runs, at least 5 %.

    Args:
        peaks: of at least one run, the peak of its largest rank.
    """
    top = max(peaks)
    least = LEAST_MARGIN if len(peaks) >= FEW_RUNS else MARGIN_OF_FEW
    margin = max(top - min(peaks), round(least * top))
    return MemoryClaim(top + margin, ClaimSource.LEARNED, 100 * margin / top, len(peaks))


def memory_key(spec: Mapping[str, Any], bundle: str) -> str:
    """A key that is equal for jobs expected to need equal memory on a device."""
    facts = [
        bundle,
        spec.get("kind"),
        spec.get("entrypoint") or [spec.get("module"), shape_of(spec.get("command") or [])],
        spec.get("gpus"),
        shape_of(spec.get("args") or []),
        spec.get("datasets") or [],
        sorted((name, _shape(value)) for name, value in (spec.get("env") or {}).items() if name != "SEED"),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def shape_of(args: Sequence[str]) -> list[str]:
    """Reduce arguments to those that change the memory: no learning rates, seeds, step counts, names."""
    found: list[str] = []
    weightless = False
    for arg in args:
        option, equals, value = arg.partition("=")
        is_option = arg.startswith("-") and not _FRACTION.fullmatch(arg)
        name = option.lstrip("-").replace("_", "-").lower()
        if is_option and equals:
            found.append(f"{option}={'#' if name in _WITHOUT_WEIGHT else _shape(value)}")
        elif is_option:
            found.append(arg)
        else:
            found.append("#" if weightless else _shape(arg))
        weightless = is_option and not equals and name in _WITHOUT_WEIGHT
    return found


def _shape(value: str) -> str:
    return "#" if _FRACTION.fullmatch(value) else value


def _peaks_by_model(keys: set[str]) -> dict[str, dict[str, list[int]]]:
    """Read the peaks of the remembered runs, newest first, by key and device model."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    if not keys:
        return found
    runs = (
        Attempt.objects.filter(memory_key__in=keys, state=AttemptState.ENDED, leases__peak_bytes__gt=0)
        .filter(Q(kind=ExitKind.OK) | Q(run_s__gte=LEAST_RUN_S))
        .exclude(kind=ExitKind.OOM_GPU)  # its need was not measured
        .values("pk", "memory_key", "leases__device__name")
        .annotate(peak=Max("leases__peak_bytes"))
        .order_by("-pk")
    )
    for run in runs[: RUNS_REMEMBERED * len(keys) * 2]:
        of_model = found[run["memory_key"]][run["leases__device__name"]]
        if len(of_model) < RUNS_REMEMBERED:
            of_model.append(run["peak"])
    return found


def _models(pools: set[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for pool, name in Device.objects.filter(pool__in=pools).values_list("pool_id", "name"):
        found[pool].add(name)
    return found


def _largest_devices(pools: set[str]) -> dict[str, int]:
    if not pools:
        return {}
    rows = Device.objects.filter(pool__in=pools).values("pool_id").annotate(most=Max("memory_bytes"))
    return {row["pool_id"]: row["most"] for row in rows}


def most_bytes(job: Job, claim_bytes: int) -> int:
    """The memory that a job may hold on a device: its claim, or its limit where that is more."""
    gib = job.spec_fields.get("gpu_memory_limit_gib")
    return claim_bytes if gib is None else max(claim_bytes, round(gib * GIB))


def slack_bytes(claim_bytes: int) -> int:
    """What a job may hold beyond a claim or limit before that counts."""
    return max(LEAST_SLACK_BYTES, round(SLACK * claim_bytes))


def larger_claim(attempt: Attempt) -> int | None:
    """Compute the next claim of a job that outgrew the claim of this attempt; None if it had whole devices."""
    leases = list(Lease.objects.filter(attempt=attempt, memory_bytes__isnull=False).select_related("device"))
    claimed = max((lease.memory_bytes or 0 for lease in leases), default=0)
    there = max((lease.device.memory_bytes for lease in leases), default=0)
    if claimed >= there:
        return None
    seen = max(lease.peak_bytes or 0 for lease in leases)
    return min(there, max(round(GROWTH * claimed), round((1 + MARGIN_OF_FEW) * seen)))
