"""Everything that a training needs to go on as if nothing had happened."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from training.checkpoint.differences import describe_differences
from training.checkpoint.store import CheckpointError
from training.data import ResumableSampler, mix_seeds
from training.precision import Scaler
from training.strategies.interface import Strategy

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


def explain_other_model(saved: dict[str, Any], model: nn.Module) -> CheckpointError | None:
    """The error to raise where a checkpoint is of another model; None where it is not."""
    found = describe_differences(saved, model.state_dict())
    if not found:
        return None
    return CheckpointError(
        f"The checkpoint is of another model: {'; '.join(found)}. "
        "Resume with the model of that run, or start anew with resume=False."
    )


def seed_rng(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def capture_rng() -> dict[str, Any]:
    """This process's generators, in types that a checkpoint may hold."""
    kind, keys, position, has_gauss, gauss = cast(_NumpyState, np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": [kind, torch.tensor(keys.astype(np.int64)), position, has_gauss, gauss],
    }


def restore_rng(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, numpy_gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, numpy_gauss))
