"""How jobs of kind ``model`` train: what their runs say of it, and what changes when memory ran out."""

import json
from dataclasses import dataclass
from typing import Any

from orchestrator.models import Attempt, Job, Lease
from training.plan.given import MEMORY_VARIABLE, PLAN_VARIABLE, WHY_VARIABLE, with_less_memory
from training.plan.table import format_s, summarise
from training.plan.types import Plan

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


@dataclass(frozen=True, slots=True)
class Lighter:
    """The plan of the next attempt after memory ran out, and what is different in it."""

    plan: dict[str, Any]
    change: str


def read_event(event: dict[str, Any]) -> dict[str, Any] | None:
    """A run's plan event as it is kept with the attempt; None where it makes no sense.

    Nothing in it is trusted: a run writes what it likes.
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


def _read_fewer(given: object) -> dict[str, Any]:
    """The plans for fewer devices, by their number."""
    plans = [parse_plan(each) for each in list(given.values())[:_KEPT]] if isinstance(given, dict) else []
    return {str(plan.world_size): plan.to_json() for plan in plans if plan is not None}


def read_candidates(given: object) -> list[dict[str, Any]]:
    """What the planner considered, each with memory, step time and why it was not taken."""
    if not isinstance(given, list):
        return []
    read = []
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
    """What to try after an attempt ran out of memory; None for scripts and where nothing smaller is left."""
    if attempt.job.spec_fields.get("kind") != "model":
        return None
    plan = parse_plan(attempt.plan.get("plan"))
    less = with_less_memory(plan) if plan is not None else None
    if less is None:
        return None
    return Lighter(less[0].to_json(), less[1])


def environment(job: Job, attempt: Attempt) -> dict[str, str]:
    """What tells a ``model`` run how it is to train, and in how much memory of each device."""
    if job.spec_fields.get("kind") != "model":
        return {}
    told = {}
    limits = [limit for lease in attempt.leases.select_related("device") if (limit := _limit(lease))]
    if limits:
        told[MEMORY_VARIABLE] = str(min(limits))
    if ready := _ready_plan(job, attempt):
        told[PLAN_VARIABLE], told[WHY_VARIABLE] = json.dumps(ready[0].to_json()), ready[1]
    return told


def _ready_plan(job: Job, attempt: Attempt) -> tuple[Plan, str] | None:
    """What is known already for as many devices as the attempt has, and why it is taken; None: the run plans."""
    count = attempt.leases.count()
    lighter = parse_plan(job.next_plan)
    if lighter is not None and lighter.world_size == count:
        return lighter, "With less memory than the attempt before."
    last = Attempt.objects.filter(job=job, number=attempt.number - 1).first()
    kept = parse_plan(last.plan.get("fewer", {}).get(str(count))) if last else None
    if kept is None or kept.world_size != count:
        return None
    return kept, f"Made by the attempt before, should it have only {count} of its devices left."


def _limit(lease: Lease) -> int | None:
    """The memory that the run may count on; of a whole real GPU it sees for itself what is free."""
    if lease.memory_bytes is not None:
        return lease.memory_bytes
    return lease.device.memory_bytes if lease.device.kind == "sim" else None


def show(attempt: Attempt) -> dict[str, Any] | None:
    """The plan of an attempt for people and REST; None where its run has not told one."""
    if not attempt.plan:
        return None
    rate = attempt.job.steps_per_s if attempt.job.attempt_count == attempt.number else None
    return {"changes": [], **attempt.plan, "now_step_s": 1 / rate if rate else None}


def speed(shown: dict[str, Any]) -> str:
    """As "predicted 0.19 s/step, now 0.20 s"; empty where neither is known."""
    said = [f"predicted {format_s(shown['step_s'])}/step"] if shown["step_s"] else []
    if shown["now_step_s"]:
        said.append(f"now {format_s(shown['now_step_s'])}{'' if said else '/step'}")
    return ", ".join(said)


def _load(text: object) -> dict[str, Any]:
    if not isinstance(text, str):
        return {}
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def parse_plan(values: object) -> Plan | None:
    """A plan that a run wrote; None where it makes no sense."""
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
