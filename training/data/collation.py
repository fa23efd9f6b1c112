"""Batches from samples, their way to the device, and the first sample of a dataset."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import IterableDataset, default_collate

from training.data.sampler import DataError

T = TypeVar("T")
Collate = Callable[[list[Any]], Any]


def collate(samples: list[Any]) -> Any:
    """Make a batch; dicts become one tensor a column, also of lists of numbers, and texts stay lists.

    Raises:
        DataError: the lists of a column have different lengths.
    """
    if not isinstance(samples[0], Mapping):
        return default_collate(samples)
    return {name: _column(str(name), [sample[name] for sample in samples]) for name in samples[0]}


def _column(name: str, values: list[Any]) -> Any:
    first = values[0]
    if first is None or isinstance(first, str | bytes):
        return values
    if isinstance(first, Mapping):
        return collate(values)
    try:
        return torch.tensor(values) if isinstance(first, list | tuple) else default_collate(values)
    except (ValueError, RuntimeError) as error:
        raise DataError(
            f"The column {name!r} has samples of different sizes, which make no batch ({error}). Pad them when the "
            "dataset is made, or pass fit() a collate_fn, such as transformers.DataCollatorWithPadding(tokenizer)."
        ) from error
    except TypeError:  # pictures, dates, lists of texts: for a collate_fn of one's own
        return values


def move_to(batch: T, device: torch.device) -> T:
    """Move every tensor of a batch to ``device``, without waiting for the copy.

    A batch may hold mappings, lists, tuples, dataclasses, and objects that move themselves by ``to``.
    """
    if isinstance(batch, Tensor):
        return cast(T, batch.to(device, non_blocking=True))
    if callable(move := getattr(batch, "to", None)):  # such as PackedSequence, whose lengths stay on the host
        return cast(T, move(device))
    if isinstance(batch, Mapping):
        return cast(T, {name: move_to(value, device) for name, value in batch.items()})
    if isinstance(batch, list | tuple):
        values = [move_to(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else cast(T, type(batch)(values))
    if is_dataclass(batch) and not isinstance(batch, type):
        moved = copy(batch)  # not replace(), which would run __post_init__ again
        for field in fields(batch):
            object.__setattr__(moved, field.name, move_to(getattr(batch, field.name), device))
        return moved
    return batch


def first_sample(dataset: Any, collate_fn: Collate | None = None) -> Any:
    """Return a sample without its batch dimension, as batches have it; leaves torch's generators unchanged.

    Raises:
        DataError: the dataset gave no sample.
    """
    with torch.random.fork_rng(devices=[]):
        sample = draw(dataset, 1)[0]
        if collate_fn is None and not isinstance(sample, Mapping):
            return sample
        batch = (collate_fn or collate)([sample])
    if isinstance(batch, Mapping):
        batch = dict(batch)
    return tree_map(lambda each: each[0] if isinstance(each, Tensor) and each.dim() else each, batch)


def repeat(batch: Any, size: int) -> Any:
    """Repeat a batch of one sample ``size`` times."""
    return tree_map(
        lambda each: each.repeat_interleave(size, dim=0) if isinstance(each, Tensor) else each, batch
    )


def is_stream(dataset: object) -> bool:
    """Return whether the dataset is only read from its beginning: an IterableDataset, or anything alike."""
    by_index = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not by_index)


def draw(dataset: Any, count: int) -> Sequence[Any]:
    """Return ``count`` samples, repeated where there are fewer."""
    if not is_stream(dataset):
        return [dataset[index % len(dataset)] for index in range(count)]
    samples = [sample for sample, _ in zip(iter(dataset), range(count), strict=False)]
    if not samples:
        raise DataError(f"{type(dataset).__name__} gave no sample; give a dataset with at least one.")
    return [samples[index % len(samples)] for index in range(count)]
