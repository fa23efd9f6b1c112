"""The workload of a training: its traced steps, from which memory and time are predicted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from training.config import ConfigError
from training.config.plan import CheckpointingName, PrecisionName
from training.model.batches import Objective
from training.model.layer_splits import find_layers
from training.model.objective import LossFn
from training.plan.memory import Footprint, OptimizerCost
from training.plan.tracing import measure_optimizer, trace_step


@dataclass(slots=True)
class Workload:
    """A model, one sample and its loss and optimizer; traced at most once for each precision and checkpointing."""

    model: nn.Module
    sample: Any
    loss_fn: LossFn | Objective | None
    optimizer: OptimizerCost
    dataset_length: int
    _traced: dict[tuple[str, str], Footprint]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        sample: Any,
        loss_fn: LossFn | Objective | None,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None,
        dataset_length: int,
        *,
        on_gpu: bool,
    ) -> "Workload":
        make = make_optimizer or (lambda each: torch.optim.AdamW(each.parameters()))
        optimizer = measure_optimizer(make, on_gpu=on_gpu)
        return cls(model, sample, loss_fn, optimizer, dataset_length, {})

    def footprint(self, precision: PrecisionName, checkpointing: CheckpointingName) -> Footprint:
        """Return the traced step; raise CannotEstimate if the model cannot be traced."""
        key = (precision, checkpointing)
        if key not in self._traced:
            self._traced[key] = trace_step(
                self.model, self.sample, self.loss_fn, precision=precision, checkpointing=checkpointing
            )
        return self._traced[key]

    def splits(self, world_size: int) -> list[str]:
        """List the strategies that split the model itself and fit it."""
        allowed = []
        if isinstance(self.model, nn.Sequential) and len(self.model) >= world_size:
            allowed.append("pipeline")
        try:
            if world_size > 1 and find_layers(self.model, world_size).splits:
                allowed.append("tensor")
        except ConfigError:
            pass  # the model has no layers to split; replication remains
        return allowed
