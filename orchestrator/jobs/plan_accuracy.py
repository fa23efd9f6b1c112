"""Plans against what was measured: kept with each attempt, shown, and used to correct the next prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from django.db.models import Max

from orchestrator.facts.events import Happened
from orchestrator.facts.record import NOTHING, Fact, fact
from orchestrator.jobs.training_plans import Candidate, Measured, PlanRecord
from orchestrator.models import Attempt, Lease

LEAST_STEPS = 20  # fewer are mostly warm-up
RUNS = 20  # the newest on a model of device; the median of them corrects
FAR_OFF = 3.0  # the job's history mentions a prediction that is wrong by this factor


@dataclass(frozen=True, slots=True)
class Correction:
    """What predictions for a model of device are multiplied by, and how many runs say so."""

    step: float = 1.0
    runs: int = 0


def correction_for(device_name: str) -> Correction:
    """How much longer steps took on devices of this model than the planner said."""
    seen = (
        Attempt.objects.filter(leases__device__name=device_name, plan__has_key="measured")
        .order_by("-pk")
        .distinct()
        .values_list("plan", flat=True)[:RUNS]
    )
    ratios = [
        measured / planned
        for plan in seen
        if (planned := planned_step_s(plan)) and (measured := plan["measured"]["step_s"])
    ]
    return Correction(median(ratios), len(ratios)) if ratios else Correction()


def planned_step_s(plan: PlanRecord) -> float | None:
    """What the planner itself said, before any correction."""
    return plan.get("planned_step_s") or plan.get("step_s")


def corrected(plan: PlanRecord, correction: Correction) -> PlanRecord:
    """The record of a plan with the step times that earlier runs lead to expect."""
    if not correction.runs:
        return plan
    changed: PlanRecord = {**plan, "correction": {"step": correction.step, "runs": correction.runs}}
    if (step_s := plan["step_s"]) is not None:
        changed["planned_step_s"], changed["step_s"] = step_s, step_s * correction.step
    changed["candidates"] = corrected_candidates(plan["candidates"], correction)
    return changed


def corrected_candidates(candidates: Sequence[Candidate], correction: Correction) -> list[Candidate]:
    """The plans that were considered, with corrected step times."""
    return [
        {**one, "step_s": None if one["step_s"] is None else one["step_s"] * correction.step}
        for one in candidates
    ]


def correction_of(attempt: Attempt) -> Correction:
    """The correction for the devices that an attempt holds."""
    names = Lease.objects.filter(attempt=attempt).values_list("device__name", flat=True)
    return correction_for(names[0]) if names else Correction()


def keep_measured(attempt: Attempt, ended_at: datetime) -> Fact:
    """Store what the steps of an attempt took and what its devices held, at its end.

    Returns: a fact for the history if the prediction was far off, else NOTHING.
    """
    row = Attempt.objects.get(pk=attempt.pk)
    if not row.plan:
        return NOTHING
    held = Lease.objects.filter(attempt=attempt, peak_bytes__gt=0)
    measured: Measured = {
        "step_s": _step_s(row, ended_at),
        "memory_bytes": held.aggregate(most=Max("peak_bytes"))["most"],
    }
    Attempt.objects.filter(pk=row.pk).update(plan={**row.plan, "measured": measured})
    step_s, predicted_s = measured["step_s"], row.plan.get("step_s")
    if not step_s or not predicted_s or 1 / FAR_OFF < step_s / predicted_s < FAR_OFF:
        return NOTHING
    names = [lease.device.name for lease in row.leases.select_related("device")]
    return fact(Happened.PREDICTION_FAR_OFF, predicted_s=predicted_s, measured_s=step_s, device=names[0])


def _step_s(attempt: Attempt, ended_at: datetime) -> float | None:
    """The mean time of the steps after the first report; None if they were too few."""
    if attempt.first_step is None or attempt.last_step is None or attempt.first_step_at is None:
        return None
    steps = attempt.last_step - attempt.first_step
    lasted_s = (ended_at - attempt.first_step_at).total_seconds()
    return lasted_s / steps if steps >= LEAST_STEPS and lasted_s > 0 else None
