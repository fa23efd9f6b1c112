"""Prefetching: batches are copied to the device, and augmented there, before they are needed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from training.data import move_to
from training.data.loader import WholeBatches

Augment = Callable[[Any], Any]


class DevicePrefetcher:
    """Copies the next batch to the device, and augments it there, during training on the current one.

    ``augment(inputs)`` takes the inputs of a batch on the device and returns the inputs to train on.
    Without a GPU it runs between the steps.
    """

    def __init__(
        self, loader: Iterable[Any], device: torch.device, *, augment: Augment | None = None
    ) -> None:
        self._loader, self._device, self._augment = loader, device, augment
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch gives it no types

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        next_batch = self._prepare(batches)
        while next_batch is not None:
            ready = next_batch[0]
            if self._stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)
                _mark_used(ready, self._device)
            next_batch = self._prepare(batches)
            yield ready

    def _prepare(self, batches: Iterator[Any]) -> tuple[Any] | None:
        """Return the next batch in a tuple, since a batch may be any object, or None at the end."""
        try:
            batch = next(batches)
        except StopIteration:
            return None
        with torch.cuda.stream(self._stream):
            batch = move_to(batch, self._device)
            if self._augment is not None:
                inputs, *rest = batch
                batch = (self._augment(inputs), *rest)
        return (batch,)


def _mark_used(batch: Any, device: torch.device) -> None:
    """Keep the allocator from reusing the memory while the training's stream still reads it."""
    if isinstance(batch, Tensor):
        batch.record_stream(torch.cuda.current_stream(device))
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _mark_used(value, device)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _mark_used(value, device)


def on_device(loader: DataLoader[Any], device: torch.device) -> Iterator[Any]:
    """Iterate over the loader's batches on the GPU; prefetch only if that keeps resuming exact.

    Without workers, a dataset may use the same random generators as the model. Numbers drawn ahead of a
    checkpoint would be drawn again after it.
    """
    if loader.num_workers or isinstance(loader.dataset, WholeBatches):
        from training.data.prefetch import DevicePrefetcher  # it needs what stands here

        return iter(DevicePrefetcher(loader, device))
    return (move_to(batch, device) for batch in loader)
