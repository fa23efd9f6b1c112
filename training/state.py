"""The state of a training: everything needed to resume it exactly."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import StateDict

from training.checkpoint.differences import explain_other_model
from training.data import AnySampler
from training.data.sampler import SamplerState
from training.rng import RngState, mix_seeds, restore_rng, seed_rng
from training.strategies.interface import Strategy, Weights
from training.strategies.precision import Scaler


class SavedState(Weights):
    """A training in a checkpoint."""

    step: int
    scheduler: StateDict | None
    sampler: SamplerState
    scaler: Mapping[str, Any] | None  # missing in checkpoints of earlier versions
    rng: list[RngState]  # of each rank
    callbacks: StateDict  # missing in checkpoints of earlier versions


@dataclass(slots=True)
class TrainState:
    """What changes while a training runs; ``model`` is the user's own, not a wrapper.

    If the strategy splits the model, ``model`` holds this rank's part of the parameters.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    sampler: AnySampler
    strategy: Strategy
    scaler: Scaler
    step: int = 0  # optimizer updates done
    metrics: dict[str, float] = field(default_factory=dict)  # the newest of each name, of all ranks

    def state_dict(self, rng: list[RngState], callbacks: StateDict | None = None) -> SavedState:
        """Return the state to save: complete on rank 0, or split as DTensors. All ranks must call this.

        ``rng`` holds ``capture_rng`` of each rank.
        """
        strategy = self.strategy
        weights = strategy.sharded_state if strategy.saves_shards else strategy.full_state
        return {
            "step": self.step,
            **weights(self.model, self.optimizer),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "sampler": self.sampler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "rng": rng,
            "callbacks": callbacks or {},
        }

    def load_state_dict(self, state: SavedState) -> None:
        """Load whole tensors, whatever strategy saved them. All ranks must call this.

        Also restores this rank's random generators; a new rank seeds its own.
        """
        self.step = state["step"]
        try:
            self.strategy.load_full_state(self.model, self.optimizer, state)
        except (RuntimeError, KeyError, ValueError) as error:
            raise explain_other_model(state["model"], self.model) or error from error
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state.get("scaler"))
        self.sampler.load_state_dict(state["sampler"])
        rank = self.strategy.ranks.rank
        if rank < len(state["rng"]):
            restore_rng(state["rng"][rank])
        else:
            seed_rng(mix_seeds(self.sampler.seed, self.strategy.data_rank, self.step))

    def full_model_state(self) -> Mapping[str, Any]:
        """Return the whole model's ``state_dict``, complete on rank 0. All ranks must call this."""
        return self.strategy.full_state(self.model, self.optimizer).get("model", {})

    def export(self, path: Path) -> None:
        """Write the whole model's ``state_dict`` to ``path`` atomically. All ranks must call this.

        The file does not depend on the strategy; ``torch.load(path, weights_only=True)`` reads it.
        """
        whole = self.full_model_state()
        if self.strategy.ranks.rank != 0:
            return
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            torch.save(whole, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
