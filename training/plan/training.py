"""What is to be trained, before anything is known of its cost."""

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
    """What is to be trained, and on what kind of device."""

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
        """From the arguments of ``fit``; an optimizer that exists already stands for its class and settings."""
        if isinstance(optimizer, Optimizer):
            made = optimizer
            return cls(config, model, dataset, device, loss_fn or default_loss, lambda each: like(made, each))
        return cls(config, model, dataset, device, loss_fn or default_loss, optimizer)
