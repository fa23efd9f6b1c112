"""The training to plan."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from torch.optim import Optimizer

from training.config import TrainConfig
from training.data import SizedDataset
from training.model.objective import LossFn, MakeOptimizer, default_loss, like


@dataclass(frozen=True, slots=True)
class Training:
    """The model, dataset and settings to plan for, and a device of the kind to use."""

    config: TrainConfig
    model: nn.Module
    dataset: SizedDataset
    device: torch.device
    loss_fn: LossFn
    make_optimizer: MakeOptimizer | None = None  # None: AdamW

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        model: nn.Module,
        dataset: SizedDataset,
        device: torch.device,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
    ) -> Self:
        """Build from the arguments of ``fit``; an existing optimizer is replaced by a new one of its class and settings."""
        if isinstance(optimizer, Optimizer):
            template = optimizer
            return cls(
                config, model, dataset, device, loss_fn or default_loss, lambda copy: like(template, copy)
            )
        return cls(config, model, dataset, device, loss_fn or default_loss, optimizer)
