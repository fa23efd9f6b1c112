"""Everything that a training needs to go on as if nothing had happened."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from training.checkpoint.differences import explain_other_model
from training.data import ResumableSampler
from training.rng import mix_seeds, restore_rng, seed_rng
from training.strategies.interface import Strategy
from training.strategies.precision import Scaler

_NumpyState = tuple[str, "np.typing.NDArray[np.uint32]", int, int, float]

LossFn = Callable[[Any, Any], Tensor]


@dataclass(slots=True)
class TrainState:
    """What changes while a training runs; ``model`` is the user's own, not a wrapper of it.

    Where the strategy splits the model, ``model`` holds this rank's part of the parameters.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    sampler: ResumableSampler
    strategy: Strategy
    scaler: Scaler
    step: int = 0  # optimizer updates done

    def state_dict(self, rng: list[dict[str, Any]]) -> dict[str, Any]:
        """All ranks call it; what is to be saved is whole on rank 0, or split as DTensors.

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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take whole tensors, whatever strategy saved them; all ranks call it.

        Also restores this rank's generators; a rank that is new gets its own from the seed.
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

    def full_model_state(self) -> dict[str, Any]:
        """The whole model's ``state_dict``, complete on rank 0; all ranks call it."""
        full = self.strategy.full_state(self.model, self.optimizer)
        return cast(dict[str, Any], full.get("model", {}))
