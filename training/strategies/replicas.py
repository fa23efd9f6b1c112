"""Ranks that start alike: the same program, and the same weights."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, distributed, nn

from training.config import ConfigError, TrainConfig
from training.strategies.interface import Strategy

_BUCKET_BYTES = 64 << 20  # the whole model may not fit on the device


def make_alike(model: nn.Module, device: torch.device) -> None:
    """Copy the parameters and buffers of rank 0 to every rank, through ``device``."""
    copy_from_first([*model.parameters(), *model.buffers()], device)


@torch.no_grad()
def copy_from_first(tensors: Sequence[Tensor], device: torch.device) -> None:
    """Copy the values of rank 0 to every rank."""
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


def check_ranks_agree(strategy: Strategy, config: TrainConfig, model: nn.Module, length: int) -> None:
    """Raise ConfigError on all ranks if one runs a different program, which would make the others hang later."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    settings = {name: value for name, value in asdict(config).items() if name != "checkpoint_dir"}
    facts = {
        "model": hashlib.sha256(repr(shapes).encode()).hexdigest()[:12],
        "dataset length": length,
        "plan": strategy.plan,
        "config": settings,
        "device": strategy.device.type,
        "torch": str(torch.__version__),
    }
    of_ranks = strategy.ranks.gather(facts)
    for name in facts:
        values = [of_rank[name] for of_rank in of_ranks]
        common = max(values, key=values.count)
        if odd := [rank for rank, value in enumerate(values) if value != common]:
            raise ConfigError(
                f"The {name} of rank {', '.join(map(str, odd))} differs from the other ranks' "
                f"({_difference(values[odd[0]], common)}); all ranks must run the same program on the same data."
            )


def _difference(odd: Any, common: Any) -> str:
    if isinstance(odd, dict):
        return ", ".join(
            f"{key}: {odd[key]!r}, not {common[key]!r}" for key in odd if odd[key] != common[key]
        )
    return f"{odd!r}, not {common!r}"
