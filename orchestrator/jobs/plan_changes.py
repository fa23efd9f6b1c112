"""Changes in how a ``model`` trains: within a run, and from one attempt to the next."""

import re
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.facts.events import Happened
from orchestrator.facts.record import NOTHING, Fact, fact
from orchestrator.jobs import plan_accuracy, training_plans
from orchestrator.jobs.training_plans import PlanChange
from orchestrator.models import Attempt, ExitKind, Job
from training.config.plan import Plan
from training.config.words import summarise
from training.events import BALANCED_EVENT

MOST_CHANGES = 20
_LARGEST = 2**31
_BALANCE = "rebalanced by the measured speed of the ranks"
_NUMBERS = re.compile(r"\d{1,9}(, \d{1,9}){0,63}")


def keep_plan(attempt: Attempt, event: Mapping[str, object]) -> None:
    """Store the plan that a run reports, and its differences from the previous attempt."""
    record = training_plans.read_event(event)
    if record is not None:
        record = plan_accuracy.corrected(record, plan_accuracy.correction_of(attempt))
        record["changes"] = _since_last_attempt(attempt, Plan.from_json(record["plan"]))
        Attempt.objects.filter(pk=attempt.pk).update(plan=record)


def note_less_memory(attempt: Attempt, event: Mapping[str, object]) -> Fact:
    """Store that a step was repeated with smaller micro-batches; the next attempt starts with them.

    Returns: the fact for the history; NOTHING if the event makes no sense.
    """
    before, after, step = (_number(event.get(name)) for name in ("from_batch_size", "to_batch_size", "step"))
    if before is None or after is None or step is None or before % after:
        return NOTHING
    rank = _number(event.get("rank"), least=0)
    who = f"rank {rank}" if rank is not None else "a rank"
    why = f"{who} ran out of memory, and the step was repeated"
    kept = Attempt.objects.values_list("plan", flat=True).get(pk=attempt.pk)
    plan = training_plans.parse_plan(kept.get("plan")) if kept else None
    if plan is None or plan.batch_size != before:
        what = f"micro-batch {before} -> {after}, the effective batch stays"
        return fact(Happened.RUN_LESS_MEMORY, step=step, change=what, why=why)
    times = plan.gradient_accumulation_steps * before // after
    smaller = replace(plan, batch_size=after, gradient_accumulation_steps=times)
    what = describe(plan, smaller)
    changes = [*kept.get("changes", []), {"step": step, "what": what, "why": why}][-MOST_CHANGES:]
    kept = {**kept, "plan": smaller.to_json(), "summary": summarise(smaller), "changes": changes}
    Attempt.objects.filter(pk=attempt.pk).update(plan=kept)
    Job.objects.filter(pk=attempt.job_id).update(next_plan=smaller.to_json())
    return fact(Happened.RUN_LESS_MEMORY, step=step, change=what, why=why)


def note_balanced(attempt: Attempt, event: Mapping[str, object]) -> None:
    """Store how a run rebalanced its work; several changes in a row leave the newest."""
    step, shares, bounds = _number(event.get("step")), event.get("shares"), event.get("stage_bounds")
    division = shares or bounds
    if step is None or not isinstance(division, str) or not _NUMBERS.fullmatch(division):
        return
    what = f"samples of each rank {division}" if shares else f"pipeline cut before blocks {division}"
    kept = Attempt.objects.values_list("plan", flat=True).get(pk=attempt.pk)
    if not kept:
        return
    changes = kept.get("changes", [])
    if changes and changes[-1].get("code") == BALANCED_EVENT:
        changes = changes[:-1]
    newest = {"code": BALANCED_EVENT, "step": step, "what": what, "why": _BALANCE}
    changes = [*changes, newest][-MOST_CHANGES:]
    Attempt.objects.filter(pk=attempt.pk).update(plan={**kept, "changes": changes})


def describe(before: Plan, after: Plan) -> str:
    """Describe how a plan differs from another; "" if it does not."""
    said = []
    if before.world_size != after.world_size:
        said.append(f"{before.world_size} -> {after.world_size} devices")
    if before.batch_size != after.batch_size:
        said.append(
            f"micro-batch {before.batch_size} -> {after.batch_size}, {before.gradient_accumulation_steps} -> "
            f"{after.gradient_accumulation_steps} of them in a step"
        )
    if before.activation_checkpointing != after.activation_checkpointing:
        said.append(
            f"activation checkpointing {before.activation_checkpointing} -> {after.activation_checkpointing}"
        )
    if before.cpu_offload != after.cpu_offload:
        said.append(f"offload to the host {before.cpu_offload} -> {after.cpu_offload}")
    if before.strategy != after.strategy:
        said.append(f"strategy {before.strategy} -> {after.strategy}")
    if before.samples_per_step != after.samples_per_step:
        said.append(f"effective batch {before.samples_per_step} -> {after.samples_per_step}")
    elif said:
        said.append(f"the effective batch stays {after.samples_per_step}")
    return "; ".join(said)


def _since_last_attempt(attempt: Attempt, plan: Plan) -> list[PlanChange]:
    last = Attempt.objects.filter(job_id=attempt.job_id, number=attempt.number - 1).first()
    before = training_plans.parse_plan(last.plan.get("plan")) if last else None
    what = describe(before, plan) if before is not None else ""
    if last is None or not what:
        return []
    why = "planned again"
    if last.kind == ExitKind.OOM_GPU:
        why = f"attempt {last.number} ran out of memory"
    elif before is not None and before.world_size != plan.world_size:
        why = f"attempt {last.number} had {before.world_size} devices"
    return [{"step": None, "what": what, "why": why}]


def _number(value: object, *, least: int = 1) -> int | None:
    return value if type(value) is int and least <= value < _LARGEST else None
