"""The most that a rank has allocated in a step, for every plan, from one traced step (see ``tracing``)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.plan.types import Plan


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """Bytes that an optimizer keeps for each byte of parameters, and uses for a moment in its step."""

    states: float
    scratch_all: float  # times all parameters, as loops over lists of tensors take
    scratch_largest: float  # times the largest parameter


@dataclass(frozen=True, slots=True)
class Work:
    """What one micro-batch computes, forward and backward."""

    flops: float  # for each sample
    moved_fixed_bytes: float  # read and written, roughly: of results whose size the batch does not change
    moved_bytes: float  # for each sample
    operations: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """One step of a model, traced with one precision and one kind of checkpointing."""

    parameter_bytes: int
    trainable_bytes: int
    buffer_bytes: int
    largest_parameter_bytes: int
    sample_bytes: float  # of inputs and targets
    block_parameter_bytes: tuple[int, ...]
    block_kept: tuple[tuple[float, float], ...]  # by block: what forward leaves: fixed, for each sample
    # Bytes alive after each operation: fixed, for each sample, gradients of parameters.
    timeline: NDArray[np.float64]
    work: "Work"
    unused: tuple[str, ...] = ()  # parameters that got no gradient

    def activations_bytes(self, batch_size: int, gradient_share: float = 1.0) -> float:
        """The most that is alive beside parameters, buffers and optimizer states."""
        fixed, by_sample, gradients = self.timeline
        return float((fixed + by_sample * batch_size + gradients * gradient_share).max())


def peak_bytes(footprint: Footprint, plan: Plan, optimizer: OptimizerCost) -> float:
    """The most that a rank of ``plan`` has allocated in a step after the first."""
    shares = _shares(plan)
    trainable = footprint.trainable_bytes / shares.model
    states = 0.0 if plan.cpu_offload in ("optimizer", "parameters") else optimizer.states
    kept = footprint.parameter_bytes / shares.parameters / shares.model
    kept += footprint.buffer_bytes + footprint.sample_bytes * plan.batch_size
    kept += states * trainable / shares.optimizer
    if plan.strategy in ("fsdp", "zero2") and shares.parameters > 1:
        kept += 2 * max(footprint.block_parameter_bytes, default=footprint.parameter_bytes)
    if plan.cpu_offload == "parameters":
        kept -= footprint.parameter_bytes / shares.parameters
    gradients = trainable / shares.gradients
    if _keeps_gradients(plan):
        working = _working_bytes(footprint, plan, 0.0) + gradients
    else:
        working = _working_bytes(footprint, plan, 1 / shares.gradients / shares.model)
    scratch = optimizer.scratch_all * trainable + optimizer.scratch_largest * min(
        footprint.largest_parameter_bytes, trainable
    )
    return kept + max(working, gradients + scratch / shares.optimizer)


def saved_copy_bytes(footprint: Footprint, plan: Plan, optimizer: OptimizerCost) -> float:
    """What the checkpointer keeps in host memory from the first step on: a copy of all that it saves.

    Of a rank that writes: its part where the strategy saves parts, else everything, on rank 0.
    """
    saved = footprint.parameter_bytes + optimizer.states * footprint.trainable_bytes
    match plan.strategy:
        case "zero2" | "fsdp":
            saved /= plan.dp
        case "tensor":
            saved /= plan.tp
    return saved + footprint.buffer_bytes


@dataclass(frozen=True, slots=True)
class _Shares:
    """Over how many ranks each part of the state is divided."""

    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1
    model: int = 1  # ranks that hold different layers or columns


def _shares(plan: Plan) -> _Shares:
    match plan.strategy:
        case "zero1":
            return _Shares(optimizer=plan.dp)
        case "zero2":
            return _Shares(gradients=plan.dp, optimizer=plan.dp)
        case "fsdp":
            return _Shares(plan.dp, plan.dp, plan.dp)
        case "pipeline" | "tensor":
            return _Shares(model=plan.pp * plan.tp)
        case _:
            return _Shares()


def _keeps_gradients(plan: Plan) -> bool:
    """Whether gradients lie in buffers that stay: DDP's buckets, or accumulation over micro-batches."""
    return plan.strategy in ("ddp", "zero1") or plan.gradient_accumulation_steps > 1


def _working_bytes(footprint: Footprint, plan: Plan, gradient_share: float) -> float:
    if plan.strategy == "pipeline":
        return _stage_bytes(footprint, plan, gradient_share)
    whole = footprint.activations_bytes(plan.batch_size, gradient_share)
    if plan.tp > 1:  # columns are divided, what lies between blocks is not
        whole *= (1 + 1 / plan.tp) / 2
    if plan.cpu_offload == "activations":
        kept = _kept_by_blocks(footprint, plan.batch_size)
        whole = max(whole - sum(kept) + 2 * max(kept, default=0), 2 * max(kept, default=0))
    return whole


def _stage_bytes(footprint: Footprint, plan: Plan, gradient_share: float) -> float:
    """The first stage keeps the most micro-batches; a stage has an even share of the blocks."""
    part = max(plan.batch_size // plan.pipeline_micro_batches, 1)
    on_the_way = plan.pipeline_micro_batches
    if plan.pipeline_schedule == "1f1b":
        on_the_way = min(plan.pp, plan.pipeline_micro_batches)
    whole = footprint.activations_bytes(part, gradient_share)
    kept = sum(_kept_by_blocks(footprint, part)) / plan.pp
    return whole / plan.pp + kept * (on_the_way - 1)


def _kept_by_blocks(footprint: Footprint, batch_size: int) -> list[float]:
    return [fixed + by_sample * batch_size for fixed, by_sample in footprint.block_kept]
