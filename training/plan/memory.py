"""Predicted peak memory of a rank for any plan, from one traced step (see ``tracing``)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.config.plan import Plan


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """Memory of an optimizer, relative to the parameters: state, and scratch within its step."""

    states: float
    scratch_all: float  # times all parameters, for multi-tensor kernels
    scratch_largest: float  # times the largest parameter


@dataclass(frozen=True, slots=True)
class Work:
    """Computation of one micro-batch, forward and backward."""

    flops: float  # per sample
    moved_fixed_bytes: float  # rough reads and writes, for results that do not grow with the batch
    moved_bytes: float  # per sample
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
    block_kept: tuple[tuple[float, float], ...]  # bytes that each block's forward keeps: fixed, per sample
    # Live bytes after each operation: fixed, per sample, gradients of parameters.
    timeline: NDArray[np.float64]
    work: "Work"
    unused: tuple[str, ...] = ()  # parameters that got no gradient

    def activations_bytes(self, batch_size: int, gradient_share: float = 1.0) -> float:
        """Return the peak beyond parameters, buffers and optimizer state."""
        fixed, by_sample, gradients = self.timeline
        return float((fixed + by_sample * batch_size + gradients * gradient_share).max())


def peak_bytes(footprint: Footprint, plan: Plan, optimizer: OptimizerCost) -> float:
    """Predict the peak of a rank of ``plan``, in any step after the first."""
    shares = _shares(plan)
    trainable = footprint.trainable_bytes / shares.model
    states = 0.0 if plan.cpu_offload in ("optimizer", "parameters") else optimizer.states
    persistent = footprint.parameter_bytes / shares.parameters / shares.model
    persistent += footprint.buffer_bytes + footprint.sample_bytes * plan.batch_size
    persistent += states * trainable / shares.optimizer
    if plan.strategy in ("fsdp", "zero2") and shares.parameters > 1:
        persistent += 2 * max(footprint.block_parameter_bytes, default=footprint.parameter_bytes)
    if plan.cpu_offload == "parameters":
        persistent -= footprint.parameter_bytes / shares.parameters
    gradients = trainable / shares.gradients
    if _keeps_gradients(plan):
        working = _working_bytes(footprint, plan, 0.0) + gradients
    else:
        working = _working_bytes(footprint, plan, 1 / shares.gradients / shares.model)
    scratch = optimizer.scratch_all * trainable + optimizer.scratch_largest * min(
        footprint.largest_parameter_bytes, trainable
    )
    return persistent + max(working, gradients + scratch / shares.optimizer)


def saved_copy_bytes(footprint: Footprint, plan: Plan, optimizer: OptimizerCost) -> float:
    """Predict the host memory of the checkpointer's copy, on a rank that writes.

    This is the rank's part if the strategy saves shards, else everything, on rank 0.
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
    """Number of ranks over which each part of the state is divided."""

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
    """Return whether gradients stay allocated: DDP's buckets, or accumulation over micro-batches."""
    return plan.strategy in ("ddp", "zero1") or plan.gradient_accumulation_steps > 1


def _working_bytes(footprint: Footprint, plan: Plan, gradient_share: float) -> float:
    if plan.strategy == "pipeline":
        return _stage_bytes(footprint, plan, gradient_share)
    whole = footprint.activations_bytes(plan.batch_size, gradient_share)
    if plan.tp > 1:  # columns are divided, tensors between blocks are not
        whole *= (1 + 1 / plan.tp) / 2
    if plan.cpu_offload == "activations":
        kept = _kept_by_blocks(footprint, plan.batch_size)
        whole = max(whole - sum(kept) + 2 * max(kept, default=0), 2 * max(kept, default=0))
    return whole


def _stage_bytes(footprint: Footprint, plan: Plan, gradient_share: float) -> float:
    """Predict the memory of the first stage, which keeps the most micro-batches, with an even share of blocks."""
    part = max(plan.batch_size // plan.pipeline_micro_batches, 1)
    in_flight = plan.pipeline_micro_batches
    if plan.pipeline_schedule == "1f1b":
        in_flight = min(plan.pp, plan.pipeline_micro_batches)
    whole = footprint.activations_bytes(part, gradient_share)
    kept = sum(_kept_by_blocks(footprint, part)) / plan.pp
    return whole / plan.pp + kept * (in_flight - 1)


def _kept_by_blocks(footprint: Footprint, batch_size: int) -> list[float]:
    return [fixed + by_sample * batch_size for fixed, by_sample in footprint.block_kept]
