"""Caches for datasets that are slow to read: in memory, or on the local disk."""

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.data import DataError, SizedDataset


class InMemory:
    """Caches samples in memory, up to ``most_bytes``; the others are read again each time.

    Apply random augmentation after the cache, not before.  Each data-loader worker has its own cache.
    """

    def __init__(self, dataset: SizedDataset, *, most_bytes: int = 4 << 30) -> None:
        self._dataset = dataset
        self._free_bytes = most_bytes
        self._samples: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if index in self._samples:
            return self._samples[index]
        sample = self._dataset[index]
        size = size_bytes(sample)
        if size <= self._free_bytes:
            self._free_bytes -= size
            self._samples[index] = sample
        return sample


class OnDisk:
    """Caches samples as files in a local folder, for datasets that are remote or costly to decode.

    Several processes may share the folder: files are written atomically.  Samples must consist of
    tensors, numbers, strings, and lists, tuples and dicts of them.

    Raises:
        DataError: the folder caches another dataset.
    """

    def __init__(self, dataset: SizedDataset, folder: Path | str) -> None:
        self._dataset = dataset
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        about, length = self._folder / "length", str(len(dataset))
        if not about.exists():
            _write_whole(about, length.encode())
        if (cached_length := about.read_text()) != length:
            raise DataError(
                f"{self._folder} caches a dataset of {cached_length[:20]} samples, not {length}; use one folder per dataset."
            )

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        path = self._folder / f"{index}.pt"
        try:
            return torch.load(path, weights_only=True)
        except FileNotFoundError:
            sample = self._dataset[index]
        part = path.with_suffix(f".{os.getpid()}.part")
        torch.save(sample, part)
        part.replace(path)
        return sample


def size_bytes(sample: Any) -> int:
    """Estimate the memory of a sample."""
    if isinstance(sample, Tensor):
        return sample.numel() * sample.element_size() + 100
    if isinstance(sample, dict | OrderedDict):
        return sum(map(size_bytes, sample.values())) + 100
    if isinstance(sample, list | tuple):
        return sum(map(size_bytes, sample)) + 50
    return 50 + (len(sample) if isinstance(sample, str | bytes) else 0)


def _write_whole(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)
