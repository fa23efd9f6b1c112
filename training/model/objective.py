"""Loss, optimizer and learning rate of a training."""

from collections.abc import Callable
from math import isinf, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR

from training.config import ConfigError, TrainConfig
from training.config.plan import Plan

LossFn = Callable[[Any, Any], Tensor]
MakeOptimizer = Callable[[nn.Module], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler | None]
_WARMUP_SHARE = 0.05  # of the run, if the rate was raised (Goyal et al., 2017, section 2.2)


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return functional.mse_loss(outputs, targets)
    return functional.cross_entropy(outputs, targets)


def make_optimizer(
    wanted: Optimizer | MakeOptimizer | None, model: nn.Module, config: TrainConfig, strategy: str
) -> Optimizer:
    """Return the optimizer of the prepared model's parameters.

    Raises:
        ConfigError: the optimizer was made before the strategy replaced the parameters.
    """
    if wanted is None:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    if not isinstance(wanted, Optimizer):
        return wanted(model)
    current = {id(parameter) for parameter in model.parameters()}
    stale = any(
        id(parameter) not in current for group in wanted.param_groups for parameter in group["params"]
    )
    if stale:
        raise ConfigError(
            f"strategy {strategy!r} replaces the model's parameters, so the optimizer must be made "
            "afterwards: pass fit() a function, as optimizer=lambda model: torch.optim.AdamW(model.parameters())."
        )
    return wanted


def make_scheduler(wanted: LRScheduler | MakeScheduler | None, optimizer: Optimizer) -> LRScheduler | None:
    """Return the scheduler of the optimizer that the steps use.

    Raises:
        ConfigError: the scheduler was made for another optimizer, which no step uses.
    """
    if not isinstance(wanted, LRScheduler):
        return wanted(optimizer) if wanted is not None else None
    if wanted.optimizer is not optimizer:
        raise ConfigError(
            f"This {type(wanted).__name__} belongs to an optimizer that no step uses. Pass that optimizer to fit() "
            "too; where the strategy replaces it, pass a function, as "
            f"scheduler=lambda optimizer: {type(wanted).__name__}(optimizer, ...)."
        )
    if all("initial_lr" in group for group in optimizer.param_groups):  # maybe scaled since it was made
        wanted.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    return wanted


def like(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    """Make an optimizer of the same class and settings for another model's parameters."""
    return type(optimizer)(model.parameters(), **optimizer.defaults)


def batch_growth(config: TrainConfig, plan: Plan, data_ranks: int) -> float:
    """How many times more samples a step has than the one that the rate was chosen for."""
    of_rank = plan.batch_size * plan.gradient_accumulation_steps
    return data_ranks if config.lr_batch_size is None else of_rank * data_ranks / config.lr_batch_size


def scale_rate(optimizer: Optimizer, config: TrainConfig, growth: float) -> None:
    """Scale the rate of every group with the samples of a step; call this before a scheduler is made.

    Linear: Goyal et al. 2017, section 2.1; by the square root: Krizhevsky 2014, section 5.
    """
    factor = {"none": 1.0, "linear": growth, "sqrt": sqrt(growth)}[config.lr_scaling]
    for group in optimizer.param_groups:
        group["lr"] *= factor
        if "initial_lr" in group:  # a scheduler was made before
            group["initial_lr"] *= factor


def warmup_steps(config: TrainConfig, total_steps: float, growth: float) -> int:
    """Return the steps of the warm-up.

    Raises:
        ConfigError: they are a share of a stream of unknown length.
    """
    if config.lr_warmup_steps is not None:
        return config.lr_warmup_steps
    raised = config.lr_scaling != "none" and growth > 1
    if raised and isinf(total_steps):
        raise ConfigError(
            "lr_scaling raises the rate with a warm-up of 5 % of the run, and the end of this stream is unknown; set "
            "lr_warmup_steps, or max_steps."
        )
    return round(total_steps * _WARMUP_SHARE) if raised else 0


def add_warmup(optimizer: Optimizer, scheduler: LRScheduler | None, steps: int) -> LRScheduler | None:
    """Add a linear warm-up of ``steps`` steps, after which ``scheduler`` starts."""
    if steps == 0:
        return scheduler
    if scheduler is not None:  # its constructor set the rate of its own first step, which comes later
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
    warmup = LinearLR(optimizer, start_factor=1 / (steps + 1), total_iters=steps)
    return warmup if scheduler is None else SequentialLR(optimizer, [warmup, scheduler], milestones=[steps])
