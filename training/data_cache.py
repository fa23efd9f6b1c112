"""Datasets that are slow to read, read once: kept in memory or on the local disk."""

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.data import DataError, SizedDataset


class InMemory:
    """Keeps samples in memory up to ``most_bytes``; what does not fit is read again each time.

    Augmentation must come after it.  Each data-loader worker keeps its own.
    """

    def __init__(self, dataset: SizedDataset, *, most_bytes: int = 4 << 30) -> None:
        self._dataset = dataset
        self._left = most_bytes
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if index in self._kept:
            return self._kept[index]
        sample = self._dataset[index]
        size = size_bytes(sample)
        if size <= self._left:
            self._left -= size
            self._kept[index] = sample
        return sample


class OnDisk:
    """Keeps samples as files in a local folder, for datasets that lie far away or are dear to decode.

    Several processes may share the folder: a file appears whole.  Samples must be made of tensors,
    numbers, strings, and lists, tuples and dicts of them.

    Raises:
        DataError: the folder holds samples of another dataset.
    """

    def __init__(self, dataset: SizedDataset, folder: Path | str) -> None:
        self._dataset = dataset
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        about, length = self._folder / "length", str(len(dataset))
        if not about.exists():
            _write_whole(about, length.encode())
        if (found := about.read_text()) != length:
            raise DataError(
                f"{self._folder} keeps a dataset of {found[:20]} samples, not {length}; give each dataset its own."
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
    """About how much memory a sample takes."""
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
