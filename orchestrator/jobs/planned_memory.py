"""Memory that jobs of kind ``model`` claim before any run of theirs: what the planner expects, corrected by earlier plans.

The planner runs once for each key of equal memory (``memory_claims.memory_key``) and pool, in the agent, while the first
such job waits for it; scripts, and models that cannot be planned, take whole devices.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from orchestrator.models import Attempt, Device, Job, JobState, PlannedMemory, Sharing

PATIENCE = timedelta(seconds=60)  # a job that waited this long for its plan takes whole devices
CONTEXT_BYTES = 768 * 2**20  # of a CUDA context with the libraries that torch loads, measured on an H200
WORKSPACES_BYTES = (
    64 * 2**20
)  # that torch keeps for cuBLAS from Hopper on; the planner here has no GPU to ask
LEAST_MARGIN = 0.10
MOST_FACTOR = 3.0  # one odd run must not make every claim a whole device
RUNS = 20

Key = tuple[str, str]  # of equal memory, and the pool


@dataclass(frozen=True, slots=True)
class Expected:
    """Memory that the planner expects on each device, with the margin that earlier plans ask for."""

    memory_bytes: int
    error_percent: float
    runs: int  # plans that were compared with their runs


def is_planned(job: Job) -> bool:
    """Whether a job's first claim comes from the planner; load jobs with their pools."""
    fields = job.spec_fields
    return (
        fields.get("kind") == "model"
        and job.pool.sharing == Sharing.LEARNED
        and fields.get("gpu_memory_gib") is None
        and not fields.get("max_gpus")
        and bool(job.bundle)
    )


def expected(keys: Iterable[Key]) -> dict[Key, Expected]:
    """Read what is expected for these keys; those without a usable plan are missing."""
    keys = set(keys)
    rows = PlannedMemory.objects.filter(key__in={key for key, _ in keys}, memory_bytes__gt=0)
    found = [row for row in rows if (row.key, row.pool_id) in keys]
    margins = {pool: _margin(pool) for pool in {row.pool_id for row in found}}
    return {
        (row.key, row.pool_id): _with_margin(row.memory_bytes or 0, *margins[row.pool_id]) for row in found
    }


def _with_margin(planned_bytes: int, factor: float, beside_bytes: int, runs: int) -> Expected:
    claim = round((planned_bytes + beside_bytes) * factor)
    return Expected(claim, 100 * (factor - 1), runs)


def _margin(pool: str) -> tuple[float, int, int]:
    """What plans for this pool's devices are multiplied by, what is added, and how many runs say so."""
    kinds = dict(Device.objects.filter(pool=pool).values_list("name", "kind"))
    ratios = [measured / planned for planned, measured in plans_and_peaks(kinds)]
    factor = 1 + LEAST_MARGIN
    if ratios:
        return min(MOST_FACTOR, max(ratios) * factor), 0, len(ratios)  # a peak has the context in it
    return factor, CONTEXT_BYTES + WORKSPACES_BYTES if "gpu" in kinds.values() else 0, 0


def plans_and_peaks(models: Iterable[str], most: int = RUNS) -> list[tuple[float, float]]:
    """The memory that the newest plans on these models of device expected, and the peak that was measured."""
    rows = Attempt.objects.filter(leases__device__name__in=list(models), plan__has_key="measured")
    plans = rows.order_by("-pk").distinct().values_list("plan", flat=True)[:most]
    return [
        (planned, measured)
        for plan in plans
        if (planned := plan.get("memory_bytes")) and (measured := plan["measured"].get("memory_bytes"))
    ]


def waiting_for_plans(
    jobs: Iterable[Job], keys: Mapping[UUID, str], now: datetime
) -> dict[Key, list[tuple[Job, datetime]]]:
    """The queued jobs whose plan is still to come, by key, each with the moment until which it waits for it.

    Args:
        keys: of equal memory, by job.
    """
    jobs = [job for job in jobs if job.state == JobState.QUEUED and is_planned(job)]
    rows = {
        (row.key, row.pool_id): row
        for row in PlannedMemory.objects.filter(key__in={keys[job.pk] for job in jobs})
    }
    waiting: dict[Key, list[tuple[Job, datetime]]] = defaultdict(list)
    for job in jobs:
        key = (keys[job.pk], job.pool_id)
        row = rows.get(key)
        until = (row.created_at if row else job.submitted_at) + PATIENCE
        claims_less = job.claimed_bytes is not None or job.attempt_count > 0
        if not claims_less and (row is None or row.ended_at is None) and now < until:
            waiting[key].append((job, until))
    return waiting
