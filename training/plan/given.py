"""The plan that Berth hands to an attempt.  No torch here: the server reads and writes it, too."""

import json
import os
from dataclasses import replace

from training.plan.types import Plan

PLAN_VARIABLE = "BERTH_PLAN"  # JSON of a plan that is carried out as it is
WHY_VARIABLE = "BERTH_PLAN_WHY"  # a sentence for the job's page
MEMORY_VARIABLE = (
    "BERTH_DEVICE_MEMORY_BYTES"  # what a job may use of each device; a simulated one has no other
)
PLAN_EVENT = "plan"
"""How the run trains: ``plan``, ``table`` (JSON text), ``summary``, ``why``, ``memory_bytes``, ``step_s``."""


def given_plan(world_size: int) -> Plan | None:
    """The plan in the environment, where it is for this many ranks."""
    text = os.environ.get(PLAN_VARIABLE)
    if not text:
        return None
    plan = Plan.from_json(json.loads(text))
    return plan if plan.world_size == world_size else None


def declared_memory_bytes() -> int | None:
    """The limit that Berth set for each device of this job."""
    text = os.environ.get(MEMORY_VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def with_less_memory(plan: Plan) -> tuple[Plan, str] | None:
    """The plan with the same effective batch and less memory, and what was changed; None where nothing is left.

    Half the micro-batch and twice as many; of single samples, activations computed again.
    """
    parts = plan.pipeline_micro_batches
    if plan.batch_size % 2 == 0 and (plan.pp == 1 or plan.batch_size // 2 >= plan.pp):
        smaller = replace(
            plan,
            batch_size=plan.batch_size // 2,
            gradient_accumulation_steps=plan.gradient_accumulation_steps * 2,
            pipeline_micro_batches=min(parts, plan.batch_size // 2),
        )
        return smaller, (
            f"micro-batch {plan.batch_size} -> {smaller.batch_size}, {plan.gradient_accumulation_steps} -> "
            f"{smaller.gradient_accumulation_steps} of them in a step; the effective batch stays "
            f"{plan.samples_per_step}"
        )
    if plan.activation_checkpointing != "full":
        return replace(plan, activation_checkpointing="full"), (
            "activations are computed again instead of kept; the effective batch stays "
            f"{plan.samples_per_step}"
        )
    return None
