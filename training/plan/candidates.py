"""Candidates: every plan that a config allows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

from training.config import TrainConfig
from training.config.fixed_plan import fixed_plan
from training.config.plan import CheckpointingName, OffloadName, Plan, PrecisionName, StrategyName

MOST_MICRO_BATCH = 4096
_PARTS_OF_A_RANK = 4  # keeps the ranks busy four fifths of the time
_DIVIDING = ("pipeline", "tensor", "placed")
_REPLICATED = ("ddp", "zero1", "zero2", "fsdp")
_FITTING_OFFLOAD: dict[str, tuple[str, ...]] = {
    "parameters": ("zero2", "fsdp"),
    "optimizer": ("single", "ddp"),
    "activations": ("single", "ddp", "zero1", "zero2", "fsdp"),
}


def leaves_choice(config: TrainConfig) -> bool:
    """Return whether the config leaves anything for the search to decide."""
    if config.strategy == "placed":
        return True
    open_fields = (
        config.strategy,
        config.batch_size,
        config.precision,
        config.activation_checkpointing,
        config.cpu_offload,
    )
    return "auto" in open_fields


@dataclass(frozen=True, slots=True)
class Ways:
    """How a model can be divided, besides replication and sharding."""

    blocks: int = 0  # that a pipeline can be cut between
    tensor: frozenset[int] = frozenset()  # numbers of ranks that can share its layers
    layers: int = 0  # that can be placed one by one
    counts_batches: bool = False  # whether statistics of a batch change if it is processed in parts


Division = tuple[StrategyName, int, int, int]  # strategy, dp, pp, tp


def list_plans(
    config: TrainConfig,
    world_size: int,
    *,
    has_bf16: bool,
    on_gpu: bool,
    most_batch: int,
    ways: Ways = Ways(),
    widened: bool = False,
) -> Iterator[Plan]:
    """List plans from simple to complex; an open batch size takes powers of two.

    Ranks are divided between data, stages and tensors in every way that the model allows.  ``widened`` adds
    options that do not change the results, regardless of the config: recomputation, offload, and smaller
    micro-batches at the same effective batch.
    """
    for division, precision, checkpointing, offload in product(
        _divisions(config, world_size, ways),
        _precisions(config, has_bf16),
        _checkpointings(config, widened),
        _offloads(config, on_gpu, widened),
    ):
        strategy = division[0]
        if offload != "none" and strategy not in _FITTING_OFFLOAD[offload]:
            continue
        if strategy == "placed" and checkpointing != "none":
            continue
        plain = _with_ranks(config, division, world_size, precision, checkpointing, offload)
        if plain is not None:
            for plan in _batch_sizes(config, plain, most_batch, widened):
                yield plan
                if _gains_from_parts(config, plan, ways):
                    yield replace(plan, pipeline_micro_batches=_most_parts(plan))


def _divisions(config: TrainConfig, world_size: int, ways: Ways) -> Iterator[Division]:
    """List the ways to divide the ranks, those in one dimension first."""
    mixed = []
    for strategy in _strategies(config, world_size, ways):
        if strategy not in _DIVIDING:
            yield strategy, world_size, 1, 1
            continue
        for division in _divide(config, strategy, world_size, ways):
            if division[1] == 1 and 1 in division[2:]:
                yield division
            else:
                mixed.append(division)
    yield from mixed


def _divide(config: TrainConfig, strategy: StrategyName, world_size: int, ways: Ways) -> Iterator[Division]:
    """List (dp, pp, tp) of a strategy; sizes that the config names are kept."""
    chosen = config.strategy != "auto"
    sizes = [size for size in range(1, world_size + 1) if world_size % size == 0]
    for pp, tp in product(sizes, sizes):
        if world_size % (pp * tp):
            continue
        if config.tensor_parallel_size not in (None, tp) or config.pipeline_parallel_size not in (None, pp):
            continue
        if (pp > 1) != (strategy in ("pipeline", "placed")) and not chosen:
            continue
        if (tp > 1 and strategy == "placed") or (pp > 1 and strategy == "tensor"):
            continue
        if tp > 1 and tp not in ways.tensor and not chosen:
            continue
        if strategy == "tensor" and tp == 1 and (world_size > 1 or not chosen):
            continue
        if not chosen and pp > (ways.blocks if strategy == "pipeline" else max(ways.layers, 1)):
            continue
        yield strategy, world_size // (pp * tp), pp, tp


def _gains_from_parts(config: TrainConfig, plan: Plan, ways: Ways) -> bool:
    """Return whether parts of a micro-batch may follow each other through placed layers."""
    return (
        plan.strategy == "placed"
        and config.pipeline_micro_batches is None
        and not ways.counts_batches
        and _most_parts(plan) > 1
    )


def _most_parts(plan: Plan) -> int:
    """Return the largest number of equal parts up to four for each rank."""
    most = min(_PARTS_OF_A_RANK * plan.pp, plan.batch_size)
    return next(parts for parts in range(most, 0, -1) if plan.batch_size % parts == 0)


def _strategies(config: TrainConfig, world_size: int, ways: Ways) -> Sequence[StrategyName]:
    if config.strategy != "auto":
        return (config.strategy,)
    if (config.pipeline_parallel_size or 1) > 1:
        return ("pipeline",)
    if (config.tensor_parallel_size or 1) > 1:
        return ("tensor",)
    if world_size == 1:
        return ("single",)
    allowed = [*_REPLICATED]
    allowed += ["pipeline"] if ways.blocks > 1 else []
    allowed += ["tensor"] if ways.tensor else []
    allowed += ["placed"] if ways.layers > 1 else []
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
    division: Division,
    world_size: int,
    precision: PrecisionName,
    checkpointing: CheckpointingName,
    offload: OffloadName,
) -> Plan | None:
    """Return the plan of a strategy on these ranks; None if the ranks do not fit it."""
    strategy, _, pp, tp = division
    settings = replace(
        config,
        strategy=strategy,
        placement=config.placement if strategy == "placed" else "auto",
        pipeline_parallel_size=pp if strategy in ("pipeline", "placed") else None,
        tensor_parallel_size=tp if strategy in ("pipeline", "tensor") else None,
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
    if plain.strategy == "placed":
        return (
            None
            if batch_size % parts
            else replace(plain, batch_size=batch_size, gradient_accumulation_steps=micro_batches)
        )
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
