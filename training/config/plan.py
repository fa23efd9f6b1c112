"""The plan of a training: how its ranks, batches and memory are used.  Imports no torch."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

StrategyName = Literal["single", "dp", "ddp", "zero1", "zero2", "fsdp", "pipeline", "tensor", "placed"]
PrecisionName = Literal["fp32", "bf16", "fp16"]
CheckpointingName = Literal["none", "selective", "full"]
OffloadName = Literal["none", "optimizer", "parameters", "activations"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved"]
PlacementName = Literal["auto", "m-topo", "m-etf", "m-sct", "stages"]

PLAN_VARIABLE = "BERTH_PLAN"  # JSON of the plan to carry out
WHY_VARIABLE = "BERTH_PLAN_WHY"  # the reason, for the job's page
MEMORY_VARIABLE = "BERTH_DEVICE_MEMORY_BYTES"  # memory that a job may use on each device; simulated devices have no other limit
PLAN_EVENT = "plan"
"""The chosen plan: ``plan``, ``table`` (JSON text), ``summary``, ``why``, ``memory_bytes``, ``step_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a strategy needs to know, complete: no value is "auto".

    A plan takes ``dp * pp * tp`` ranks.  Rank r has the coordinates (data, stage, tensor) of
    ``numpy.unravel_index(r, (dp, pp, tp))``: tensor ranks are neighbours.
    """

    strategy: StrategyName = "single"
    dp: int = 1  # ranks, or groups of ranks, that see different samples
    pp: int = 1  # ranks that hold different blocks
    tp: int = 1  # ranks that hold different columns or rows
    batch_size: int = 32  # samples per data-parallel rank and micro-batch
    gradient_accumulation_steps: int = 1  # micro-batches per step
    precision: PrecisionName = "fp32"
    activation_checkpointing: CheckpointingName = "none"
    cpu_offload: OffloadName = "none"
    find_unused_parameters: bool = False  # for ddp and zero1: a step may leave parameters without a gradient
    pipeline_schedule: ScheduleName = "1f1b"
    pipeline_micro_batches: int = 1  # parts into which a pipeline splits ``batch_size``
    # First block of the second and each later stage; None: equal parameters per stage.  An interleaved
    # schedule has ``2 * pp`` stages: rank r holds stages r and ``pp + r``.
    stage_bounds: tuple[int, ...] | None = None
    # For "placed": the rank of ``pp`` of each traced layer; None: assigned when the training starts.
    layer_ranks: tuple[int, ...] | None = None
    placement: str = "auto"  # how the layers were assigned

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.tp

    @property
    def samples_per_step(self) -> int:
        """The effective batch; plans with the same one give the same losses."""
        return self.batch_size * self.gradient_accumulation_steps * self.dp

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave; ignore fields that a newer version added."""
        names = {field.name for field in fields(cls)}
        own = {name: value for name, value in values.items() if name in names}
        if own.get("stage_bounds") is not None:
            own["stage_bounds"] = tuple(own["stage_bounds"])
        if own.get("layer_ranks") is not None:
            own["layer_ranks"] = tuple(own["layer_ranks"])
        return cls(**own)


def given_plan(world_size: int) -> Plan | None:
    """The plan that Berth set in the environment, if it is for this number of ranks."""
    text = os.environ.get(PLAN_VARIABLE)
    if not text:
        return None
    plan = Plan.from_json(json.loads(text))
    return plan if plan.world_size == world_size else None


def declared_memory_bytes() -> int | None:
    """The limit that Berth set for each device of this job."""
    text = os.environ.get(MEMORY_VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def with_ranks(plan: Plan, count: int) -> Plan | None:
    """Spread a data-parallel plan over another number of ranks, so that each step sees the same samples.

    Returns: None if the effective batch cannot be divided, or if ranks hold parts of the model.
    """
    samples, rest = divmod(plan.samples_per_step, count)
    if plan.pp * plan.tp != 1 or plan.strategy == "dp" or rest:
        return None
    micro_batch = max(size for size in range(1, min(samples, plan.batch_size) + 1) if samples % size == 0)
    strategy = plan.strategy
    if count == 1:
        strategy = "single"
    elif strategy == "single":
        strategy = "ddp"
    return replace(
        plan,
        strategy=strategy,
        dp=count,
        batch_size=micro_batch,
        gradient_accumulation_steps=samples // micro_batch,
    )


def with_less_memory(plan: Plan) -> tuple[Plan, str] | None:
    """Change the plan to need less memory at the same effective batch.

    Halves the micro-batch; for a single sample, recomputes activations.  Returns the plan and what
    changed, or None if nothing remains to change.
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
