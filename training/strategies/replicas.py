"""Models that ranks built each for itself, made equal."""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn

_BUCKET_BYTES = 64 << 20  # the device may be too small for the whole model


def make_alike(model: nn.Module, device: torch.device) -> None:
    """Give every rank the parameters and buffers of rank 0; they travel through ``device``."""
    copy_from_first([*model.parameters(), *model.buffers()], device)


@torch.no_grad()
def copy_from_first(tensors: Sequence[Tensor], device: torch.device) -> None:
    """Give every rank the values of rank 0."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (bucket[0].dtype != tensor.dtype or _size_bytes(bucket) > _BUCKET_BYTES):
            _broadcast(bucket, device)
            bucket = []
        bucket.append(tensor.data)
    if bucket:
        _broadcast(bucket, device)


def _broadcast(bucket: list[Tensor], device: torch.device) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in bucket]).to(device)
    distributed.broadcast(flat, src=0)
    parts = torch.split(flat, [tensor.numel() for tensor in bucket])
    for tensor, part in zip(bucket, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def _size_bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
