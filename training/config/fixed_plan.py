"""The plan that a config determines without a search."""

from dataclasses import replace
from typing import get_args

from training.config import ConfigError, TrainConfig
from training.config.plan import Plan, PrecisionName, StrategyName

DEFAULT_BATCH_SIZE = 32
_FILL_AT_MOST = 4  # parts of a batch per stage: keeps the bubble below a fifth of the step


def fixed_plan(config: TrainConfig, world_size: int, *, has_bf16: bool = False) -> Plan:
    """Build the plan for ``config`` on ``world_size`` ranks; "auto" becomes the simplest choice that works.

    Raises:
        ConfigError: the ranks do not fit the config; the message says what would.
    """
    strategy = _choose_strategy(config, world_size)
    _refuse_unsupported(config, strategy)
    dp, pp, tp = _divide_ranks(config, strategy, world_size)
    batch_size = DEFAULT_BATCH_SIZE if config.batch_size == "auto" else config.batch_size
    automatic: PrecisionName = "bf16" if has_bf16 else "fp32"
    return Plan(
        strategy=strategy,
        dp=dp,
        pp=pp,
        tp=tp,
        batch_size=batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        precision=automatic if config.precision == "auto" else config.precision,
        activation_checkpointing="none"
        if config.activation_checkpointing == "auto"
        else config.activation_checkpointing,
        cpu_offload="none" if config.cpu_offload == "auto" else config.cpu_offload,
        pipeline_schedule=config.pipeline_schedule,
        pipeline_micro_batches=_split_batch(config, batch_size, pp)
        if strategy == "pipeline"
        else _parts(config, batch_size)
        if strategy == "placed"
        else 1,
        placement=config.placement,
    )


def _choose_strategy(config: TrainConfig, world_size: int) -> StrategyName:
    if config.strategy == "auto":
        if (config.pipeline_parallel_size or 1) > 1:
            return "pipeline"
        if (config.tensor_parallel_size or 1) > 1:
            return "tensor"
        if world_size > 1:
            return "fsdp" if config.cpu_offload == "parameters" else "ddp"
        return "single"
    if config.strategy in ("single", "dp") and world_size > 1:
        several = ", ".join(name for name in get_args(StrategyName) if name not in ("single", "dp"))
        raise ConfigError(
            f"strategy is {config.strategy!r}, but torchrun started {world_size} ranks; "
            f"start one rank, or choose one of {several}, auto."
        )
    return config.strategy


def _refuse_unsupported(config: TrainConfig, strategy: StrategyName) -> None:
    """Check an "auto" that became ``strategy``.  A single rank may keep settings that only matter among several."""
    if config.strategy != "auto":
        return
    if strategy == "single" and config.cpu_offload == "parameters":
        raise ConfigError(
            "cpu_offload is 'parameters', which strategies zero2 and fsdp can do, and they need several ranks; with "
            "one choose 'optimizer' or 'activations'."
        )
    if strategy in ("pipeline", "tensor", "placed"):
        replace(config, strategy=strategy)  # its constructor raises for contradictions


def _divide_ranks(config: TrainConfig, strategy: str, world_size: int) -> tuple[int, int, int]:
    """(dp, pp, tp)."""
    if strategy not in ("pipeline", "tensor", "placed"):
        return world_size, 1, 1
    tp = config.tensor_parallel_size or (world_size if strategy == "tensor" else 1)
    pp = 1 if strategy == "tensor" else config.pipeline_parallel_size or max(world_size // tp, 1)
    dp, rest = divmod(world_size, pp * tp)
    if rest or dp == 0:
        raise ConfigError(
            f"pipeline_parallel_size {pp} x tensor_parallel_size {tp} do not divide {world_size} ranks; "
            f"start a multiple of {pp * tp} ranks, or choose smaller sizes."
        )
    return dp, pp, tp


def _parts(config: TrainConfig, batch_size: int) -> int:
    """Return the parts that follow each other through placed layers; whole micro-batches unless asked."""
    parts = config.pipeline_micro_batches or 1
    if batch_size % parts:
        raise ConfigError(
            f"pipeline_micro_batches is {parts}, which does not divide batch_size {batch_size}; the parts must be equal."
        )
    return parts


def _split_batch(config: TrainConfig, batch_size: int, pp: int) -> int:
    """Choose the number of equal parts of a batch in the pipeline: at least one per stage."""
    if asked := config.pipeline_micro_batches:
        fits = batch_size % asked == 0 and asked >= pp
        if not fits or (config.pipeline_schedule == "interleaved" and asked % pp):
            raise ConfigError(
                f"pipeline_micro_batches is {asked}, batch_size {batch_size}, and there are {pp} stages; "
                "the parts must be equal, at least as many as stages, and for 'interleaved' a multiple of them."
            )
        return asked
    for parts in range(min(batch_size, _FILL_AT_MOST * pp), pp - 1, -1):
        if batch_size % parts == 0 and (config.pipeline_schedule != "interleaved" or parts % pp == 0):
            return parts
    raise ConfigError(
        f"batch_size is {batch_size}; a pipeline of {pp} stages splits it into equal parts, at least {pp} "
        f"of them. Use a multiple of {pp}."
    )
