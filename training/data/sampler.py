"""The order of samples: each exactly once per epoch, across interruptions and changes of the world size."""

import os
from collections.abc import Iterator
from typing import NotRequired, TypedDict

import torch
from torch import Tensor
from torch.utils.data import Sampler

from training.rng import mix_seeds


class DataError(Exception):
    """The dataset cannot be used, or differs from the checkpoint's."""


class SamplerState(TypedDict):
    """The position in a dataset's order, as a checkpoint holds it."""

    length: int
    seed: int
    shuffle: bool
    epoch: int
    position: int
    stream: NotRequired[bool]  # whether it is one, which has its own order


class ResumableSampler(Sampler[int]):
    """Iterates over this rank's indices for the rest of an epoch.

    The order of epoch e is one permutation drawn from (seed, e), the same on all ranks.  ``position``
    counts the samples that all ranks together have trained on; from there, rank r of n takes every n-th.
    So the world size may change at any position, and every sample occurs once per epoch.  Sizes of the
    ranks differ by at most one: see ``rank_count``.

    Iterating does not move the position, since loaders read ahead: call ``advance`` after each step.

    With ``shares``, rank r takes ``shares[r]`` of every ``sum(shares)`` consecutive samples, so that a slow
    rank can get fewer.  Shares may change between epochs, on all ranks alike.
    """

    def __init__(
        self,
        length: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
    ) -> None:
        if length < 1:
            raise DataError("The dataset is empty; give one with at least one sample.")
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.world_size = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
        self.shares: tuple[int, ...] | None = None
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        yield from self.rest()[self.rank :: self.world_size].tolist()

    def rest(self) -> Tensor:
        """Return the remaining indices of this epoch over all ranks, in order."""
        order = epoch_order(self.length, self.seed, self.epoch) if self.shuffle else torch.arange(self.length)
        return order[self.position :]

    def __len__(self) -> int:
        return self.rank_count(self.length - self.position)

    @property
    def left(self) -> int:
        """Remaining samples of this epoch over all ranks."""
        return self.length - self.position

    def rank_count(self, samples: int) -> int:
        """Count this rank's part of the next ``samples``."""
        if self.shares is None:
            return len(range(self.rank, samples, self.world_size))
        rounds, rest = divmod(samples, sum(self.shares))
        before = sum(self.shares[: self.rank])
        return rounds * self.shares[self.rank] + min(max(rest - before, 0), self.shares[self.rank])

    def advance(self, samples: int) -> bool:
        """Record that all ranks together trained on ``samples`` more; return True if that ended the epoch."""
        self.position += samples
        if self.position < self.length:
            return False
        self.epoch, self.position = self.epoch + 1, 0
        return True

    def state_dict(self) -> SamplerState:
        return {
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
        }

    def load_state_dict(self, state: SamplerState) -> None:
        """Continue at the position of ``state``, with this process's rank and world size.

        Raises:
            DataError: the dataset has another length.
        """
        if state.get("stream"):
            raise DataError(
                "The checkpoint was made with a stream, and this dataset is read by index; resume with the same "
                "dataset, or start from scratch with resume=False."
            )
        if state["length"] != self.length:
            raise DataError(
                f"The checkpoint was made with {state['length']} samples, the dataset has {self.length}; "
                "resume with the same dataset, or start from scratch with resume=False."
            )
        self.seed, self.shuffle = state["seed"], state["shuffle"]
        self.epoch, self.position = state["epoch"], state["position"]


def epoch_order(length: int, seed: int, epoch: int) -> Tensor:
    """Return the permutation of ``range(length)`` for (seed, epoch), the same on every machine."""
    generator = torch.Generator().manual_seed(mix_seeds(seed, epoch))
    return torch.randperm(length, generator=generator)
