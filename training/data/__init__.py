"""The samples that ranks train on: their order, their batches, caches and prefetching."""

from training.data.loader import (
    SizedDataset,
    draw_example,
    make_loader,
    measure_length,
    move_to,
    require_batch,
    start_epoch,
)
from training.data.sampler import DataError, ResumableSampler

__all__ = [
    "DataError",
    "ResumableSampler",
    "SizedDataset",
    "draw_example",
    "make_loader",
    "measure_length",
    "move_to",
    "require_batch",
    "start_epoch",
]
