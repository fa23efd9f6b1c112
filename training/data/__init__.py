"""The samples that ranks train on: their order, their batches, caches and prefetching."""

from training.data.collation import Collate, collate, first_sample, is_stream, move_to
from training.data.loader import (
    AnySampler,
    SizedDataset,
    draw_example,
    make_loader,
    make_sampler,
    measure_length,
    require_batch,
    start_epoch,
)
from training.data.sampler import DataError, ResumableSampler
from training.data.stream import StreamReader, StreamSampler

__all__ = [
    "AnySampler",
    "Collate",
    "DataError",
    "ResumableSampler",
    "SizedDataset",
    "StreamReader",
    "StreamSampler",
    "collate",
    "draw_example",
    "first_sample",
    "is_stream",
    "make_loader",
    "make_sampler",
    "measure_length",
    "move_to",
    "require_batch",
    "start_epoch",
]
