"""Loaders of a rank's micro-batches, and checks of datasets."""

import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from training.config.plan import Plan
from training.data.collation import Collate, collate, draw, is_stream
from training.data.sampler import DataError, ResumableSampler
from training.data.stream import StreamSampler, make_stream_loader, measure_stream
from training.rng import mix_seeds


class _RankBatches(Sampler[list[int]]):
    """This rank's micro-batches for the rest of an epoch, the same number on every rank.

    A rank without samples in the last one repeats a sample, which the loop gives no weight.
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
    """A dataset whose random augmentation depends only on (seed, epoch, batch).

    Otherwise it would depend on the number of batches that the worker process made before, which a
    resumed run cannot reproduce.
    """

    def __init__(self, dataset: Any, seed: int, epoch: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._epoch = cast(
            Any, torch.tensor(epoch)
        ).share_memory_()  # persistent workers read the next epoch here

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


class WholeBatches(Dataset[Any]):
    """A TensorDataset read in batches: one index operation per tensor instead of one per sample."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._tensors = dataset.tensors

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        rows = torch.tensor(indices)
        return [tensor[rows] for tensor in self._tensors]


def _no_collation(batch: Any) -> Any:
    return batch


AnySampler = ResumableSampler | StreamSampler


class SizedDataset(Protocol):
    """A dataset with a length, and a sample for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def make_loader(
    dataset: SizedDataset | Iterable[Any],
    sampler: AnySampler,
    batch_size: int,
    num_workers: int,
    *,
    collate_fn: Collate | None = None,
    pin_memory: bool | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
) -> DataLoader[Any]:
    """Make the loader of micro-batches for the rest of the sampler's epoch.

    Make a new loader for each epoch; with ``persistent_workers`` call ``start_epoch`` instead.
    ``sum(sampler.shares)`` must be ``batch_size`` times the number of ranks.  That of a stream gives each
    micro-batch with the samples of all ranks in it, and is for a ``StreamReader``.
    """
    if isinstance(sampler, StreamSampler):
        return make_stream_loader(
            dataset,
            sampler,
            batch_size,
            num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
        )
    whole = type(dataset) is TensorDataset and collate_fn is None
    source: object = dataset
    if whole:
        source = WholeBatches(cast(TensorDataset, dataset))
    elif num_workers:
        source = _SeededFetch(dataset, sampler.seed, sampler.epoch)
    return DataLoader(
        cast(Dataset[Any], source),
        collate_fn=_no_collation if whole else collate_fn or collate,
        batch_sampler=_RankBatches(sampler, batch_size),
        num_workers=num_workers,
        # The loader draws a seed when it starts. From the global generator, a resumed run would draw once more.
        generator=torch.Generator().manual_seed(mix_seeds(sampler.seed, sampler.epoch)),
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        prefetch_factor=prefetch_factor if num_workers else None,
        persistent_workers=persistent_workers and num_workers > 0,
    )


def make_sampler(dataset: object, *, seed: int = 0, rank: int, world_size: int, shuffle: bool) -> AnySampler:
    """Make the order of a dataset's samples, or the position in a stream, which has its own order."""
    if is_stream(dataset):
        return StreamSampler(measure_stream(dataset), seed=seed, rank=rank, world_size=world_size)
    return ResumableSampler(
        measure_length(dataset) or 0, seed=seed, rank=rank, world_size=world_size, shuffle=shuffle
    )


def start_epoch(loader: DataLoader[Any], sampler: AnySampler) -> None:
    """Move a loader with persistent workers to the sampler's new epoch."""
    if isinstance(loader.dataset, _SeededFetch):
        loader.dataset.start_epoch(sampler.epoch)
    if loader.generator is not None:
        loader.generator.manual_seed(mix_seeds(sampler.seed, sampler.epoch))


def require_batch(length: int | None, batch_size: int, ranks: int) -> None:
    """Raise DataError if the dataset does not fill one micro-batch of all ranks."""
    if length is not None and length < batch_size * ranks:
        raise DataError(
            f"The dataset has {length} samples, fewer than one batch: batch_size {batch_size} on {ranks} "
            f"data-parallel ranks takes {batch_size * ranks}. Choose a batch_size of at most {length // ranks}, "
            "or fewer ranks."
            if length >= ranks
            else f"The dataset has {length} samples for {ranks} data-parallel ranks; start fewer ranks."
        )


def measure_length(dataset: object) -> int | None:
    """Return the number of samples; None for a stream that does not know its own.

    Raises:
        DataError: the dataset can be read neither by index nor repeatedly from its beginning.
    """
    if is_stream(dataset):
        return measure_stream(dataset)
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{type(dataset).__name__} cannot be read: it has neither __len__ and __getitem__, as a dataset that is "
            "read by index, nor __iter__, as a stream."
        )
    return len(dataset)


def draw_example(dataset: Any, plan: Plan, collate_fn: Collate | None = None) -> Any | None:
    """Return example inputs of one part of a batch, for a strategy that divides the layers; keeps torch's generators."""
    if plan.strategy not in ("pipeline", "placed"):
        return None
    part = plan.batch_size // plan.pipeline_micro_batches
    with torch.random.fork_rng(devices=[]):
        batch = (collate_fn or collate)([*draw(dataset, part)])
    return batch[0] if isinstance(batch, list | tuple) else batch
