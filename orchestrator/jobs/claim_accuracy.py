"""How good memory claims are: their error against the measured peak, and the share of those that were too small.

The measures of xMem (estimation of GPU memory before a run): the median relative error, and how often a run needed more.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from django.db.models import Max, Q

from orchestrator.jobs import planned_memory
from orchestrator.jobs.memory_claims import LEAST_RUN_S, ClaimSource
from orchestrator.models import Attempt, AttemptState, Device, ExitKind

RUNS = 200  # the newest of a pool
PLANNER = "planner"  # its own expectation, before a margin


@dataclass(frozen=True, slots=True)
class ClaimAccuracy:
    """What claims of one source were worth."""

    source: str
    runs: int
    median_error_percent: float  # of the measured peak
    too_small_percent: float  # of the runs


def accuracies(pool: str) -> list[ClaimAccuracy]:
    """The accuracy of each source of claims in a pool, and of the planner; sources without runs are missing."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    runs = (
        Attempt.objects.filter(job__pool=pool, state=AttemptState.ENDED, leases__peak_bytes__gt=0)
        .filter(leases__memory_bytes__isnull=False)
        .filter(Q(kind__in=[ExitKind.OK, ExitKind.OOM_GPU]) | Q(run_s__gte=LEAST_RUN_S))
        .annotate(peak=Max("leases__peak_bytes"), claim=Max("leases__memory_bytes"))
        .order_by("-pk")
        .values_list("kind", "job__memory_claim", "claim", "peak")
    )
    for kind, told, claim, peak in runs[:RUNS]:
        if not told or told.get("bytes") != claim:  # the job claims something else since
            continue
        needed = max(peak, claim + 1) if kind == ExitKind.OOM_GPU else peak
        pairs[told["source"]].append((claim, needed))
    names = Device.objects.filter(pool=pool).values_list("name", flat=True)
    pairs[PLANNER] = planned_memory.plans_and_peaks(set(names), RUNS)
    order = [str(source) for source in ClaimSource] + [PLANNER]
    return [_accuracy(source, pairs[source]) for source in order if pairs[source]]


def _accuracy(source: str, pairs: Sequence[tuple[float, float]]) -> ClaimAccuracy:
    errors = [abs(claim - needed) / needed for claim, needed in pairs]
    small = sum(needed > claim for claim, needed in pairs)
    return ClaimAccuracy(source, len(pairs), 100 * median(errors), 100 * small / len(pairs))
