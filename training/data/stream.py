"""Streams: datasets that are only read from their beginning, divided over ranks and workers by counting."""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from training.data.collation import Collate, collate
from training.data.sampler import DataError, SamplerState
from training.rng import mix_seeds


class StreamSampler:
    """The position in a stream, with what is known of its end.

    Each rank reads the whole stream and keeps every n-th sample, so ``position`` counts the samples that all
    ranks together have trained on, whatever their number.  The stream must give all ranks the same order in
    an epoch; its random numbers come from the seed and the epoch.
    """

    shares: None = None  # load balance needs access by index

    def __init__(self, length: int | None, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.length = length  # of an epoch; None: unknown until one has ended
        self.seed = seed
        self.shuffle = False
        self.rank, self.world_size = rank, world_size
        self.epoch = self.position = 0
        self.reader: StreamReader | None = None

    @property
    def left(self) -> int:
        """Samples of this epoch known to be ahead, over all ranks: a whole step, unless the stream ends."""
        return 0 if self.reader is None else self.reader.look_ahead()

    def __len__(self) -> int:
        return self.rank_count(self.left)

    def rank_count(self, samples: int) -> int:
        """Count this rank's part of the next ``samples``."""
        return len(range(self.rank, samples, self.world_size))

    def advance(self, samples: int) -> bool:
        """Record that all ranks together trained on ``samples`` more; return True if that ended the epoch."""
        self.position += samples
        if self.left:
            return False
        self.length = self.position
        self.epoch, self.position, self.reader = self.epoch + 1, 0, None
        return True

    def state_dict(self) -> SamplerState:
        return {
            "length": self.length or 0,
            "seed": self.seed,
            "shuffle": False,
            "epoch": self.epoch,
            "position": self.position,
            "stream": True,
        }

    def load_state_dict(self, state: SamplerState) -> None:
        """Continue at the position of ``state``, with this process's rank and world size.

        Raises:
            DataError: the checkpoint was made with a dataset that is read by index.
        """
        if not state.get("stream"):
            raise DataError(
                "The checkpoint was made with a dataset that is read by index, and this one is a stream; resume "
                "with the same dataset, or start from scratch with resume=False."
            )
        self.seed, self.length = state["seed"], state["length"] or self.length
        self.epoch, self.position = state["epoch"], state["position"]


class StreamReader:
    """Iterates over this rank's micro-batches of a stream, always a step ahead, so that its end is known."""

    def __init__(self, loader: Iterable[tuple[int, Any]], sampler: StreamSampler, ahead: int) -> None:
        """``loader`` gives the samples of all ranks in a micro-batch with this rank's part of it."""
        self._parts = iter(loader)
        self._sampler = sampler
        self._ahead = ahead
        self._read = sampler.position
        self._waiting: deque[Any] = deque()
        self._ended = self._began = False
        sampler.reader = self

    def look_ahead(self) -> int:
        """Read until a step is ready, or the stream ends; return the number of samples ahead."""
        while not self._ended and self._read - self._sampler.position < self._ahead:
            self._read_one()
        return self._read - self._sampler.position

    def __iter__(self) -> "StreamReader":
        return self

    def __next__(self) -> Any:
        if not self._waiting and not self._ended:
            self._read_one()
        if not self._waiting:
            raise StopIteration
        return self._waiting.popleft()

    def _read_one(self) -> None:
        part = next(self._parts, None)
        if part is None:
            self._ended = True
            if not self._began:
                before = f" after the {self._read} that were trained on" if self._read else ""
                raise DataError(f"The stream gave no sample{before}; give the dataset that has them.")
            return
        self._began = True
        self._read += part[0]
        self._waiting.append(part[1])


class _Parts(IterableDataset[Any]):
    """A rank's part of each micro-batch of a stream; each worker makes every n-th of them."""

    def __init__(
        self, dataset: Iterable[Any], sampler: StreamSampler, batch_size: int, collate_fn: Collate | None
    ) -> None:
        self._dataset, self._collate = dataset, collate_fn or collate
        self._rank, self._ranks = sampler.rank, sampler.world_size
        self._seed, self._epoch, self._position = sampler.seed, sampler.epoch, sampler.position
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        # A dataset that divides itself over workers must give all of its samples: they are counted here.
        torch_worker._worker_info = None
        generators = _Generators(mix_seeds(self._seed, self._epoch))
        with generators:
            samples = self._start()
        for part in range(2**62):
            with generators:
                count, own = self._take(samples, keeps=part % workers == number)
            if not count:
                return
            if part % workers == number:
                with _Generators(mix_seeds(self._seed, self._epoch, part, self._rank)):
                    batch = self._collate(own)
                yield count, batch

    def _start(self) -> Iterator[Any]:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        samples = iter(self._dataset)
        for _ in islice(samples, self._position):
            pass
        return samples

    def _take(self, samples: Iterator[Any], *, keeps: bool) -> tuple[int, list[Any]]:
        """Read a micro-batch of all ranks; return its size, and this rank's samples or a filler without weight."""
        count, own, first = 0, [], None
        for sample in islice(samples, self._batch_size * self._ranks):
            if keeps and count % self._ranks == self._rank:
                own.append(sample)
            if not count:
                first = sample
            count += 1
        return count, own or [first]


class _Generators:
    """Random generators of a stream, in place while it is read: the same on all ranks, and after a resume."""

    def __init__(self, seed: int) -> None:
        self._own: tuple[Any, Any, Any] | None = None
        self._others: tuple[Any, Any, Any]
        self._seed = seed

    def __enter__(self) -> None:
        self._others = _read_generators()
        if self._own is None:
            torch.default_generator.manual_seed(self._seed)  # not the GPU's, which is the model's
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
        else:
            _set_generators(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = _read_generators()
        _set_generators(self._others)


def _read_generators() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _set_generators(state: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def make_stream_loader(
    dataset: Any,
    sampler: StreamSampler,
    batch_size: int,
    num_workers: int,
    *,
    collate_fn: Collate | None = None,
    pin_memory: bool | None = None,
    prefetch_factor: int | None = None,
) -> DataLoader[Any]:
    """Make the loader for the rest of the sampler's epoch: counts with this rank's micro-batches."""
    return DataLoader(
        cast(IterableDataset[Any], _Parts(dataset, sampler, batch_size, collate_fn)),
        batch_size=None,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(mix_seeds(sampler.seed, sampler.epoch)),
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        prefetch_factor=prefetch_factor if num_workers else None,
    )


def measure_stream(dataset: Any) -> int | None:
    """Return a stream's length if it says one.

    Raises:
        DataError: the dataset can be read only once, or is a DataLoader.
    """
    if isinstance(dataset, DataLoader):
        raise DataError(
            "A DataLoader makes batches itself. Pass its dataset (loader.dataset), and its collate_fn to fit() if it "
            "has one of its own; batch_size and num_workers are settings of TrainConfig."
        )
    if hasattr(dataset, "__next__"):
        raise DataError(
            f"{type(dataset).__name__} can be read only once, so neither a second epoch nor a resume is possible. "
            "Give an object whose __iter__ starts from the beginning, such as an IterableDataset."
        )
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
