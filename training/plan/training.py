"""The training to plan."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer

from training.config import TrainConfig
from training.data import Collate, first_sample, measure_length
from training.model.batches import Objective
from training.model.objective import LossFn, MakeOptimizer, like


@dataclass(frozen=True, slots=True)
class Training:
    """The model, dataset and settings to plan for, and a device of the kind to use."""

    config: TrainConfig
    model: nn.Module
    dataset: Any
    device: torch.device
    loss_fn: LossFn | Objective | None = None
    make_optimizer: MakeOptimizer | None = None  # None: AdamW
    collate_fn: Collate | None = None

    @property
    def objective(self) -> Objective:
        return Objective.of(self.loss_fn)

    @property
    def length(self) -> int | None:
        """Samples of an epoch; None for a stream that does not know them."""
        return measure_length(self.dataset)

    def sample(self) -> Any:
        """Return a sample as batches have it, without the batch dimension."""
        return first_sample(self.dataset, self.collate_fn)

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        model: nn.Module,
        dataset: Any,
        device: torch.device,
        loss_fn: LossFn | Objective | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
        collate_fn: Collate | None = None,
    ) -> Self:
        """Build from the arguments of ``fit``; an existing optimizer is replaced by a new one of its class and settings."""
        make = partial(like, optimizer) if isinstance(optimizer, Optimizer) else optimizer
        return cls(config, model, dataset, device, loss_fn, make, collate_fn)
