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

from training.data import ResumableSampler, mix_seeds

_NumpyState = tuple[str, "np.typing.NDArray[np.uint32]", int, int, float]

LossFn = Callable[[Any, Any], Tensor]


@dataclass(slots=True)
class TrainState:
    """What changes while a training runs; ``model`` is the user's own, not a wrapper of it."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    sampler: ResumableSampler
    step: int = 0  # optimizer updates done

    def state_dict(self, rng: list[dict[str, Any]]) -> dict[str, Any]:
        """``rng`` holds ``capture_rng`` of each rank."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "sampler": self.sampler.state_dict(),
            "rng": rng,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Also restores this rank's generators; a rank that is new gets its own from the seed."""
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.sampler.load_state_dict(state["sampler"])
        rank = self.sampler.rank
        if rank < len(state["rng"]):
            restore_rng(state["rng"][rank])
        else:
            seed_rng(mix_seeds(self.sampler.seed, rank, self.step))


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
