"""Which samples a rank trains on, exactly once an epoch, whatever stops and resumes in between."""

import os
import random
from collections.abc import Iterator, Sized
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

T = TypeVar("T")


class DataError(Exception):
    """The dataset cannot be used, or is not the one that the checkpoint was made with."""


class ResumableSampler(Sampler[int]):
    """This rank's indices of the rest of an epoch.

    The order of epoch e is one permutation drawn from (seed, e), the same on all ranks.  ``position``
    counts the samples of it that all ranks together have trained on; rank r of n takes every n-th
    from there.  So the world size may change at any position, and every sample comes once an epoch.
    Ranks get sizes that differ by at most one: see ``rank_count``.

    Iterating does not move the position, since loaders read ahead: call ``advance`` after each step.

    With ``shares`` rank r takes ``shares[r]`` of each ``sum(shares)`` samples that follow each other, so
    that a slow rank may get fewer; they may change between epochs, on all ranks alike.
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
        """What all ranks together have yet to see in this epoch, in order."""
        order = epoch_order(self.length, self.seed, self.epoch) if self.shuffle else torch.arange(self.length)
        return order[self.position :]

    def __len__(self) -> int:
        return self.rank_count(self.length - self.position)

    @property
    def left(self) -> int:
        """Samples that all ranks together have yet to see in this epoch."""
        return self.length - self.position

    def rank_count(self, samples: int) -> int:
        """How many of the next ``samples`` are this rank's."""
        if self.shares is None:
            return len(range(self.rank, samples, self.world_size))
        rounds, rest = divmod(samples, sum(self.shares))
        before = sum(self.shares[: self.rank])
        return rounds * self.shares[self.rank] + min(max(rest - before, 0), self.shares[self.rank])

    def advance(self, samples: int) -> bool:
        """All ranks together trained on ``samples`` more; True when that ended the epoch."""
        self.position += samples
        if self.position < self.length:
            return False
        self.epoch, self.position = self.epoch + 1, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` stood; rank and world size stay as they are here.

        Raises:
            DataError: the dataset has another length.
        """
        if state["length"] != self.length:
            raise DataError(
                f"The checkpoint was made with {state['length']} samples, the dataset has {self.length}; "
                "resume with the same dataset, or start anew with resume=False."
            )
        self.seed, self.shuffle = state["seed"], state["shuffle"]
        self.epoch, self.position = state["epoch"], state["position"]


def epoch_order(length: int, seed: int, epoch: int) -> Tensor:
    """The permutation of ``range(length)`` that (seed, epoch) stand for, on every machine alike."""
    generator = torch.Generator().manual_seed(mix_seeds(seed, epoch))
    return torch.randperm(length, generator=generator)


def mix_seeds(*parts: int) -> int:
    """One seed from several numbers; near ones give unrelated seeds."""
    return random.Random(":".join(map(str, parts))).getrandbits(63)  # noqa: S311 -- a seed, not a secret


class _RankBatches(Sampler[list[int]]):
    """This rank's micro-batches of the rest of an epoch, equally many on every rank.

    A rank for which the last one leaves nothing repeats a sample; the loop gives it no weight.
    """

    def __init__(self, sampler: ResumableSampler, batch_size: int) -> None:
        self._sampler = sampler
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        shares = self._sampler.shares
        if shares is not None:
            yield from self._by_shares(shares)
            return
        indices = list(self._sampler)
        for number in range(len(self)):
            start = number * self._batch_size
            yield indices[start : start + self._batch_size] or [self._filler(indices)]

    def __len__(self) -> int:
        return -(-self._sampler.left // (self._batch_size * self._sampler.world_size))

    def _by_shares(self, shares: tuple[int, ...]) -> Iterator[list[int]]:
        indices = self._sampler.rest().tolist()
        start, size = sum(shares[: self._sampler.rank]), shares[self._sampler.rank]
        for first in range(0, len(indices), sum(shares)):
            yield indices[first + start : min(first + start + size, first + sum(shares))] or indices[:1]

    def _filler(self, indices: list[int]) -> int:
        return indices[0] if indices else 0


class _SeededFetch(Dataset[Any]):
    """A dataset whose random augmentation depends on (seed, epoch, batch) alone.

    In a worker process the state of its generators would depend on how many batches it made
    before, which a resumed run cannot repeat.
    """

    def __init__(self, dataset: Any, seed: int, epoch: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._epoch = cast(
            Any, torch.tensor(epoch)
        ).share_memory_()  # workers that stay read the next one here

    def start_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        seed = mix_seeds(self._seed, int(self._epoch), *indices)
        torch.manual_seed(seed)
        random.seed(seed)
        _seed_numpy(seed)
        if hasattr(self._dataset, "__getitems__"):
            return cast(list[Any], self._dataset.__getitems__(indices))
        return [self._dataset[index] for index in indices]


def _seed_numpy(seed: int) -> None:
    import numpy as np

    np.random.seed(seed % 2**32)


class _WholeBatches(Dataset[Any]):
    """A TensorDataset read by the batch: one indexing for each tensor instead of one for each sample."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._tensors = dataset.tensors

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        rows = torch.tensor(indices)
        return [tensor[rows] for tensor in self._tensors]


def _as_it_is(batch: Any) -> Any:
    return batch


class SizedDataset(Protocol):
    """What can be trained on: a length, and a sample for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def make_loader(
    dataset: SizedDataset,
    sampler: ResumableSampler,
    batch_size: int,
    num_workers: int,
    *,
    pin_memory: bool | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
) -> DataLoader[Any]:
    """Micro-batches of the rest of the sampler's epoch.

    Make a new loader for each epoch; with ``persistent_workers`` call ``start_epoch`` instead.

    ``sum(sampler.shares)`` must be ``batch_size`` times the ranks.
    """
    whole = type(dataset) is TensorDataset
    fetched: object = dataset
    if whole:
        fetched = _WholeBatches(cast(TensorDataset, dataset))
    elif num_workers:
        fetched = _SeededFetch(dataset, sampler.seed, sampler.epoch)
    return DataLoader(
        cast(Dataset[Any], fetched),
        collate_fn=_as_it_is if whole else None,
        batch_sampler=_RankBatches(sampler, batch_size),
        num_workers=num_workers,
        # The loader draws a seed when it starts; from the global generator, a resumed run would draw once more.
        generator=torch.Generator().manual_seed(mix_seeds(sampler.seed, sampler.epoch)),
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        prefetch_factor=prefetch_factor if num_workers else None,
        persistent_workers=persistent_workers and num_workers > 0,
    )


def start_epoch(loader: DataLoader[Any], sampler: ResumableSampler) -> None:
    """Let a loader whose workers stay go on with the sampler's new epoch."""
    if isinstance(loader.dataset, _SeededFetch):
        loader.dataset.start_epoch(sampler.epoch)
    if loader.generator is not None:
        loader.generator.manual_seed(mix_seeds(sampler.seed, sampler.epoch))


def require_batch(length: int, batch_size: int, ranks: int) -> None:
    """Raises DataError where the dataset does not fill one micro-batch of all ranks."""
    if length < batch_size * ranks:
        raise DataError(
            f"The dataset has {length} samples, fewer than one batch: batch_size {batch_size} on {ranks} "
            f"data-parallel ranks takes {batch_size * ranks}. Choose a batch_size of at most {length // ranks}, "
            "or fewer ranks."
            if length >= ranks
            else f"The dataset has {length} samples for {ranks} data-parallel ranks; start fewer ranks."
        )


def measure_length(dataset: object) -> int:
    """How many samples there are.

    Raises:
        DataError: the dataset does not say, as an IterableDataset does not.
    """
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{type(dataset).__name__} has no length or no access by index; exact resume needs both. "
            "Give a dataset with __len__ and __getitem__."
        )
    return len(dataset)


def move_to(batch: T, device: torch.device) -> T:
    """The batch with every tensor in it on ``device``; the copy does not wait."""
    if isinstance(batch, Tensor):
        return cast(T, batch.to(device, non_blocking=True))
    if isinstance(batch, dict):
        return cast(T, {name: move_to(value, device) for name, value in batch.items()})
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return cast(T, type(batch)(move_to(value, device) for value in batch))
    return batch


def on_device(loader: DataLoader[Any], device: torch.device) -> Iterator[Any]:
    """The loader's batches on the GPU; copied ahead where that draws no random number too early.

    Without workers a dataset may draw from the generators that the model uses too, and what was
    drawn ahead of a checkpoint would be drawn again after it.
    """
    if loader.num_workers or isinstance(loader.dataset, _WholeBatches):
        from training.prefetch import DevicePrefetcher  # it needs what stands here

        return iter(DevicePrefetcher(loader, device))
    return (move_to(batch, device) for batch in loader)
