"""Candidates: every plan that a config allows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

from training.config import TrainConfig
from training.config.fixed_plan import fixed_plan
from training.config.plan import CheckpointingName, OffloadName, Plan, PrecisionName, StrategyName

MOST_MICRO_BATCH = 4096
_REPLICATED = ("ddp", "zero1", "zero2", "fsdp")
_FITTING_OFFLOAD: dict[str, tuple[str, ...]] = {
    "parameters": ("zero2", "fsdp"),
    "optimizer": ("single", "ddp"),
    "activations": ("single", "ddp", "zero1", "zero2", "fsdp"),
}


def leaves_choice(config: TrainConfig) -> bool:
    """Return whether the config leaves anything for the search to decide."""
    open_fields = (
        config.strategy,
        config.batch_size,
        config.precision,
        config.activation_checkpointing,
        config.cpu_offload,
    )
    return "auto" in open_fields


def list_plans(
    config: TrainConfig,
    world_size: int,
    *,
    has_bf16: bool,
    on_gpu: bool,
    most_batch: int,
    splits: Sequence[str] = (),
    widened: bool = False,
) -> Iterator[Plan]:
    """List plans from simple to complex; an open batch size takes powers of two.

    ``splits`` are the strategies that the model allows besides replication.  ``widened`` adds options that do
    not change the results, regardless of the config: recomputation, offload, and smaller micro-batches
    at the same effective batch.
    """
    strategies = _strategies(config, world_size, splits)
    ways = product(
        strategies,
        _precisions(config, has_bf16),
        _checkpointings(config, widened),
        _offloads(config, on_gpu, widened),
    )
    for strategy, precision, checkpointing, offload in ways:
        if offload != "none" and strategy not in _FITTING_OFFLOAD[offload]:
            continue
        plain = _with_ranks(config, strategy, world_size, precision, checkpointing, offload)
        if plain is not None:
            yield from _batch_sizes(config, plain, most_batch, widened)


def _strategies(config: TrainConfig, world_size: int, splits: Sequence[str]) -> Sequence[StrategyName]:
    if config.strategy != "auto":
        return (config.strategy,)
    if (config.pipeline_parallel_size or 1) > 1:
        return ("pipeline",)
    if (config.tensor_parallel_size or 1) > 1:
        return ("tensor",)
    if world_size == 1:
        return ("single",)
    allowed = (*_REPLICATED, *splits)
    return [name for name in get_args(StrategyName) if name in allowed]


def _precisions(config: TrainConfig, has_bf16: bool) -> Sequence[PrecisionName]:
    if config.precision != "auto":
        return (config.precision,)
    return ("bf16",) if has_bf16 else ("fp32",)


def _checkpointings(config: TrainConfig, widened: bool) -> Sequence[CheckpointingName]:
    if widened or config.activation_checkpointing == "auto":
        return get_args(CheckpointingName)
    return (config.activation_checkpointing,)


def _offloads(config: TrainConfig, on_gpu: bool, widened: bool) -> Sequence[OffloadName]:
    """List the offloads to try; on the CPU, offload to the host gains nothing."""
    if config.cpu_offload == "auto" or config.cpu_offload == "none":
        free = on_gpu and (widened or config.cpu_offload == "auto")
        return get_args(OffloadName) if free else ("none",)
    return (config.cpu_offload,)


def _with_ranks(
    config: TrainConfig,
    strategy: StrategyName,
    world_size: int,
    precision: PrecisionName,
    checkpointing: CheckpointingName,
    offload: OffloadName,
) -> Plan | None:
    """Return the plan of a strategy on these ranks; None if the ranks do not fit it."""
    settings = replace(
        config,
        strategy=strategy,
        batch_size=MOST_MICRO_BATCH if config.batch_size == "auto" else config.batch_size,
        precision=precision,
        activation_checkpointing=checkpointing,
        cpu_offload=offload,
    )
    try:
        plan = fixed_plan(settings, world_size)
    except ValueError:
        return None
    if config.strategy != "auto":
        return plan
    # Every strategy trains on the same number of samples per step.
    times = world_size // plan.dp
    return replace(plan, gradient_accumulation_steps=plan.gradient_accumulation_steps * times)


def _batch_sizes(config: TrainConfig, plain: Plan, most_batch: int, widened: bool) -> Iterator[Plan]:
    if config.batch_size == "auto":
        size = 1
        while size <= min(MOST_MICRO_BATCH, max(most_batch, 1)):
            if cut := _with_batch(plain, size, plain.gradient_accumulation_steps):
                yield cut
            size *= 2
        return
    yield plain
    if not widened:
        return
    times = 2
    while plain.batch_size % times == 0 and plain.batch_size // times >= 1:
        more = plain.gradient_accumulation_steps * times
        if cut := _with_batch(plain, plain.batch_size // times, more):
            yield cut
        times *= 2


def _with_batch(plain: Plan, batch_size: int, micro_batches: int) -> Plan | None:
    """Change the micro-batch of a plan; a pipeline gets as many equal parts as possible."""
    parts = plain.pipeline_micro_batches
    if plain.pp > 1:
        fitting = [part for part in range(plain.pp, parts + 1) if batch_size % part == 0]
        if not fitting:
            return None
        parts = fitting[-1]
    return replace(
        plain,
        batch_size=batch_size,
        gradient_accumulation_steps=micro_batches,
        pipeline_micro_batches=parts,
    )
