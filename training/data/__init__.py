"""The samples that ranks train on: which ones, in which batches, kept and copied ahead."""

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
