"""What strategies share whose parameters are DTensors: each rank holds its part, and saves it."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from training.plan.types import Plan
from training.strategies import sharded_state
from training.strategies.ranks import Ranks
from training.strategies.single import Single


class Split(Single):
    gathers = True
    saves_shards = True

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks) -> None:
        super().__init__(plan, device, ranks)
        self.repeats = False  # ranks exchange parameters or activations in each pass
        self._model: nn.Module | None = None  # as of ``prepare``

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        return sharded_state.gather_full(model, optimizer)

    def load_full_state(self, model: nn.Module, optimizer: Optimizer, full: dict[str, Any]) -> None:
        sharded_state.scatter_full(model, optimizer, full)

    def sharded_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_sharded_state(self, model: nn.Module, optimizer: Optimizer, shard: dict[str, Any]) -> None:
        model.load_state_dict(shard["model"])
        optimizer.load_state_dict(shard["optimizer"])

    def close(self) -> None:
        self._model = None
        super().close()
