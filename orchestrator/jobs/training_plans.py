"""How jobs of kind ``model`` train: the plans that runs report, and lighter ones after out-of-memory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, cast

from orchestrator.models import Attempt, Job, Lease
from training.config.plan import (
    MEMORY_VARIABLE,
    PLAN_VARIABLE,
    WHY_VARIABLE,
    Plan,
    with_less_memory,
    with_ranks,
)
from training.config.words import format_s, summarise

MOST_CANDIDATES = 24
_LONGEST_TEXT = 1000
_KEPT = 2  # plans for fewer devices
_WHOLE_FIELDS = (
    "dp",
    "pp",
    "tp",
    "batch_size",
    "gradient_accumulation_steps",
    "pipeline_micro_batches",
)


PlanValues: TypeAlias = Mapping[str, object]  # a plan as ``Plan.to_json`` writes it


class Candidate(TypedDict):
    """A plan that the planner considered."""

    summary: str
    plan: PlanValues
    memory_bytes: float | None
    step_s: float | None
    fits: bool
    reason: str  # why it was not chosen


class PlanChange(TypedDict):
    """What a plan does otherwise than before."""

    step: int | None  # None: since its attempt began
    what: str
    why: str


class Measured(TypedDict):
    """What a plan led to, over the whole attempt."""

    step_s: float | None
    memory_bytes: int | None  # the most on one device, of all that its processes held there


class PlanRecord(TypedDict, total=False):
    """How an attempt trains, as its row has it; ``changes`` came later than the others."""

    plan: PlanValues
    summary: str
    why: str
    memory_bytes: float | None
    step_s: float | None
    usable_bytes: float | None
    device: str
    candidates: list[Candidate]
    fewer: dict[str, PlanValues]  # plans for fewer devices, by their number
    changes: list[PlanChange]
    planned_step_s: float  # as the planner said, where earlier runs corrected ``step_s``
    correction: Mapping[str, float]  # of ``step_s``: the factor, and how many runs it was learned from
    measured: Measured  # since the attempt ended
    now_step_s: float | None  # for people and REST only


@dataclass(frozen=True, slots=True)
class Lighter:
    """The plan of the next attempt after out-of-memory, and what it changes."""

    plan: PlanValues
    change: str


def read_event(event: Mapping[str, object]) -> PlanRecord | None:
    """Read a run's plan event into the record of its attempt; None if the event makes no sense.

    Nothing in the event is trusted: a run writes what it likes.
    """
    plan = parse_plan(_load(event.get("plan")))
    if plan is None:
        return None
    table = _load(event.get("table"))
    return {
        "plan": plan.to_json(),
        "summary": summarise(plan),
        "why": _text(event.get("why")),
        "memory_bytes": _number(event.get("memory_bytes")),
        "step_s": _number(event.get("step_s")),
        "usable_bytes": _number(table.get("usable_bytes")),
        "device": _text(table.get("device")),
        "candidates": read_candidates(table.get("candidates")),
        "fewer": _read_fewer(table.get("fewer")),
    }


def _read_fewer(given: object) -> dict[str, PlanValues]:
    """Read the plans for fewer devices, by their number."""
    plans = [parse_plan(each) for each in list(given.values())[:_KEPT]] if isinstance(given, dict) else []
    return {str(plan.world_size): plan.to_json() for plan in plans if plan is not None}


def read_candidates(given: object) -> list[Candidate]:
    """Read the plans that the planner considered."""
    if not isinstance(given, list):
        return []
    read: list[Candidate] = []
    for each in given[:MOST_CANDIDATES]:
        plan = parse_plan(each.get("plan")) if isinstance(each, dict) else None
        if plan is not None:
            read.append(
                {
                    "summary": summarise(plan),
                    "plan": plan.to_json(),
                    "memory_bytes": _number(each.get("memory_bytes")),
                    "step_s": _number(each.get("measured_s")) or _number(each.get("step_s")),
                    "fits": each.get("fits") is True,
                    "reason": _text(each.get("reason")),
                }
            )
    return read


def lighten(attempt: Attempt) -> Lighter | None:
    """Make a plan with less memory than the attempt's; None for scripts, or if nothing smaller is possible."""
    if attempt.job.spec.kind != "model":
        return None
    plan = parse_plan(attempt.plan.get("plan"))
    less = with_less_memory(plan) if plan is not None else None
    if less is None:
        return None
    return Lighter(less[0].to_json(), less[1])


def environment(job: Job, attempt: Attempt) -> dict[str, str]:
    """Environment variables with the plan of a ``model`` run, and its memory on each device."""
    if job.spec.kind != "model":
        return {}
    variables = {}
    limits = [limit for lease in attempt.leases.select_related("device") if (limit := _limit(lease))]
    if limits:
        variables[MEMORY_VARIABLE] = str(min(limits))
    if ready := _ready_plan(job, attempt):
        variables[PLAN_VARIABLE], variables[WHY_VARIABLE] = json.dumps(ready[0].to_json()), ready[1]
    return variables


def _ready_plan(job: Job, attempt: Attempt) -> tuple[Plan, str] | None:
    """Find a plan for the attempt's number of devices, and why it is used; None: the run plans."""
    count = attempt.leases.count()
    lighter = parse_plan(job.next_plan)
    if lighter is not None and lighter.world_size == count:
        return lighter, "With less memory than the previous attempt."
    last = Attempt.objects.filter(job=job, number=attempt.number - 1).first()
    if last is not None and job.spec_fields.get("max_gpus"):
        before = parse_plan(last.plan.get("plan"))
        same = None if before is None or before.world_size == count else with_ranks(before, count)
        if same is not None:
            return (
                same,
                f"The plan of the previous attempt on {count} devices, with the same effective batch.",
            )
    kept = parse_plan(last.plan.get("fewer", {}).get(str(count))) if last else None
    if kept is None or kept.world_size != count:
        return None
    return kept, f"Made by the previous attempt for the case that only {count} of its devices remain."


def _limit(lease: Lease) -> int | None:
    """The memory that a run may use; None: a whole real GPU, whose free memory it sees itself."""
    if lease.memory_bytes is not None:
        return lease.memory_bytes
    return lease.device.memory_bytes if lease.device.kind == "sim" else None


def show(attempt: Attempt) -> PlanRecord | None:
    """The plan of an attempt for people and REST; None before its run reports one."""
    if not attempt.plan:
        return None
    rate = attempt.job.steps_per_s if attempt.job.attempt_count == attempt.number else None
    return cast(PlanRecord, {"changes": [], **attempt.plan, "now_step_s": 1 / rate if rate else None})


def speed(shown: PlanRecord) -> str:
    """Say "predicted 0.19 s/step, now 0.20 s"; empty if both are unknown."""
    parts = [f"predicted {format_s(shown['step_s'])}/step"] if shown["step_s"] else []
    measured_s = shown["measured"]["step_s"] if shown.get("measured") else None
    if measured_s:
        parts.append(f"measured {format_s(measured_s)}{'' if parts else '/step'}")
    elif shown["now_step_s"]:
        parts.append(f"now {format_s(shown['now_step_s'])}{'' if parts else '/step'}")
    return ", ".join(parts)


def _load(text: object) -> Mapping[str, object]:
    if not isinstance(text, str):
        return {}
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def parse_plan(values: object) -> Plan | None:
    """Read a plan that a run wrote; None if it makes no sense."""
    if not isinstance(values, dict) or not values:
        return None
    try:
        plan = Plan.from_json(values)
    except (TypeError, ValueError):
        return None
    numbers = [getattr(plan, name) for name in _WHOLE_FIELDS]
    words = (plan.strategy, plan.precision, plan.activation_checkpointing, plan.cpu_offload)
    sound = all(type(each) is int and 0 < each < 2**31 for each in numbers)
    known = all(isinstance(each, str) and len(each) <= 20 and each.isalnum() for each in words)
    return plan if sound and known and plan.activation_checkpointing in _CHECKPOINTINGS else None


_CHECKPOINTINGS = ("none", "selective", "full")


def _text(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()[:_LONGEST_TEXT]


def _number(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < 1e18 else None
