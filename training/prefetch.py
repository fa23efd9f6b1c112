"""Batches that are on the device before they are needed, augmented there."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from training.data import move_to

Augment = Callable[[Any], Any]


class DevicePrefetcher:
    """Copies the next batch to the device, and augments it there, while the current one is trained on.

    ``augment(inputs)`` gets the inputs of a batch as they lie on the device and returns what to train on.
    Without a GPU it runs in turn with the training.
    """

    def __init__(
        self, loader: Iterable[Any], device: torch.device, *, augment: Augment | None = None
    ) -> None:
        self._loader, self._device, self._augment = loader, device, augment
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch gives it no types

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        coming = self._prepare(batches)
        while coming is not None:
            ready = coming[0]
            if self._stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)
                _mark_used(ready, self._device)
            coming = self._prepare(batches)
            yield ready

    def _prepare(self, batches: Iterator[Any]) -> tuple[Any] | None:
        """The next batch in a tuple, as a batch may be anything; None at the end."""
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
    """The allocator must not give the memory away while the training's stream still reads it."""
    if isinstance(batch, Tensor):
        batch.record_stream(torch.cuda.current_stream(device))
    elif isinstance(batch, dict):
        for value in batch.values():
            _mark_used(value, device)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _mark_used(value, device)
