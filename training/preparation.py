"""What a training is given, made ready for it."""

import os
from collections.abc import Callable
from math import ceil
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from training.config import ConfigError, TrainConfig
from training.data import ResumableSampler, SizedDataset
from training.plan.types import Plan
from training.strategies.interface import Strategy

MakeOptimizer = Callable[[nn.Module], Optimizer]


def make_optimizer(
    wanted: Optimizer | MakeOptimizer | None, model: nn.Module, config: TrainConfig, strategy: Strategy
) -> Optimizer:
    """The optimizer of the prepared model's parameters.

    Raises:
        ConfigError: it was made before the strategy replaced the parameters.
    """
    if wanted is None:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    if not isinstance(wanted, Optimizer):
        return wanted(model)
    there = {id(parameter) for parameter in model.parameters()}
    stale = any(id(parameter) not in there for group in wanted.param_groups for parameter in group["params"])
    if stale:
        raise ConfigError(
            f"strategy {strategy.plan.strategy!r} replaces the model's parameters, so the optimizer must be made "
            "afterwards: give fit() a function, as optimizer=lambda model: torch.optim.AdamW(model.parameters())."
        )
    return wanted


def draw_example(dataset: SizedDataset, plan: Plan) -> Any | None:
    """Inputs of a part of a batch, for a pipeline; draws nothing from torch's generators."""
    if plan.strategy != "pipeline":
        return None
    part = plan.batch_size // plan.pipeline_micro_batches
    with torch.random.fork_rng(devices=[]):
        return default_collate([dataset[index % len(dataset)] for index in range(part)])[0]


def make_deterministic() -> None:
    """Only kernels that give the same bits each time; an operation that has none raises."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def count_steps(config: TrainConfig, plan: Plan, sampler: ResumableSampler, step: int) -> int:
    """Steps at the end of the training, those before a resume included.

    A resumed run may have another world size, so what is left is counted from where it stands.
    """
    in_step = plan.samples_per_step
    epochs_after = config.epochs - sampler.epoch - 1
    left = ceil(sampler.left / in_step) + epochs_after * ceil(sampler.length / in_step)
    by_epochs = step + (left if epochs_after >= 0 else 0)
    return by_epochs if config.max_steps is None else min(by_epochs, config.max_steps)
