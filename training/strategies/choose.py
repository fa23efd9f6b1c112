"""Builds the strategy that carries out a plan, and prepares model, optimizer and forward pass for it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from training.config import ConfigError, TrainConfig
from training.config.extensions import ExtensionError, load
from training.config.plan import Plan, StrategyName
from training.memory.activation_checkpointing import checkpoint_activations
from training.memory.offload import OffloadedOptimizer, offload_activations
from training.model.blocks import find_blocks
from training.strategies.interface import Strategy
from training.strategies.precision import make_autocast
from training.strategies.ranks import Alone, Ranks
from training.strategies.single import Dp, Single


def make_strategy(
    plan: Plan,
    device: torch.device,
    config: TrainConfig | None = None,
    example: Any | None = None,
    *,
    device_ids: Sequence[int] | None = None,
) -> Strategy:
    """Make the strategy for this rank's device; connects several ranks.

    ``example`` is a batch of inputs, which "pipeline" needs for models that are not a Sequential.
    ``device_ids`` are the GPUs for "dp"; None: all.

    Raises:
        ConfigError: the plan does not fit the ranks or the device.
    """
    config = config or TrainConfig()
    if plan.strategy not in get_args(StrategyName):
        return _make_registered(plan, device, config)
    if plan.strategy == "single":
        return Single(plan, device)
    if plan.strategy == "dp":
        return Dp(plan, device, device_ids)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ:
        raise ConfigError(
            f"strategy is {plan.strategy!r}, but torchrun did not start this process; use torchrun, or 'auto'."
        )
    if plan.world_size != started:
        raise ConfigError(
            f"The plan is for {plan.world_size} ranks (dp {plan.dp} x pp {plan.pp} x tp {plan.tp}), "
            f"but torchrun started {started}."
        )
    return _make_connected(plan, device, config, example)


def _make_registered(plan: Plan, device: torch.device, config: TrainConfig) -> Strategy:
    """Make a strategy of another package: ``factory(plan, device, ranks, config)``."""
    ranks: Ranks = Alone()
    if "RANK" in os.environ:
        from training.strategies.ranks import Connected

        ranks = Connected(device, config.recovery_timeout)
    try:
        strategy: Strategy = load("strategies", plan.strategy)(plan, device, ranks, config)
    except ExtensionError as error:
        raise ConfigError(f"{error}") from error
    return strategy


def _make_connected(plan: Plan, device: torch.device, config: TrainConfig, example: Any | None) -> Strategy:
    """Make a strategy for several ranks. Late imports: they cost up to a second, which a single rank saves."""
    from training.strategies.ranks import Connected

    ranks = Connected(device, config.recovery_timeout)
    if plan.strategy == "ddp":
        from training.strategies.ddp import Ddp

        return Ddp(plan, device, ranks, config)
    if plan.strategy == "zero1":
        from training.strategies.ddp import Zero1

        return Zero1(plan, device, ranks, config)
    if plan.strategy == "zero2":
        from training.strategies.fsdp import Zero2

        return Zero2(plan, device, ranks)
    if plan.strategy == "fsdp":
        from training.strategies.fsdp import Fsdp

        return Fsdp(plan, device, ranks)
    if plan.strategy == "tensor":
        from training.strategies.tensor import TensorParallel

        return TensorParallel(plan, device, ranks)
    if plan.strategy == "placed":
        from training.strategies.placed import Placed

        return Placed(plan, device, ranks, config, example)
    from training.strategies.pipeline import Pipeline

    return Pipeline(plan, device, ranks, example, measures=config.load_balance)


def prepare_model(model: nn.Module, strategy: Strategy, *, compiled: bool = False) -> nn.Module:
    """Return the model to call in a step: with recomputation, compiled if asked, sharded or replicated."""
    checkpoint_activations(model, strategy.plan.activation_checkpointing)
    if compiled:
        # Block by block if hooks between blocks gather parameters, which a graph cannot contain.
        for module in find_blocks(model) if strategy.plan.strategy in ("zero2", "fsdp") else [model]:
            module.compile()
    return strategy.prepare(model)


def prepare_optimizer(optimizer: Optimizer, strategy: Strategy) -> Optimizer:
    """Return the optimizer to step: sharded or on the host, as planned. ``optimizer`` must be new."""
    if strategy.plan.cpu_offload == "optimizer":
        return OffloadedOptimizer(optimizer)
    return strategy.shard_optimizer(optimizer)


def forward_context(plan: Plan, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return the context manager for each forward pass and loss."""
    autocast = make_autocast(plan.precision, device)
    if plan.cpu_offload != "activations":
        return autocast

    @contextmanager
    def both() -> Iterator[None]:
        with autocast(), offload_activations(device):
            yield

    return both


def prepare(
    model: nn.Module, plan: Plan, *, config: TrainConfig | None = None, example: Any | None = None
) -> tuple[nn.Module, Strategy]:
    """Prepare a model for a loop of your own: return the model to call, and the strategy.

    Make the optimizer afterwards, from ``model.parameters()``, and pass it to ``prepare_optimizer``.
    """
    strategy = make_strategy(plan, choose_device(), config, example)
    return prepare_model(model, strategy, compiled=bool(config and config.compile)), strategy


def choose_device(device_ids: Sequence[int] | None = None) -> torch.device:
    """Return this rank's GPU, of ``device_ids`` or of all visible ones; without GPUs, the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), device_ids or range(torch.cuda.device_count())
    if local_rank >= len(gpus):
        which = "named by device_ids" if device_ids else "visible"
        raise ConfigError(
            f"Rank {local_rank} of this server has no GPU: {len(gpus)} are {which}; start {len(gpus)} ranks."
        )
    torch.cuda.set_device(gpus[local_rank])
    return torch.device("cuda", gpus[local_rank])
