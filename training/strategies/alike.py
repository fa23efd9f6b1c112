"""Ranks that run another program than the others are found before the first step."""

import hashlib
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from training.config import ConfigError, TrainConfig
from training.strategies.interface import Strategy


def check_ranks_agree(strategy: Strategy, config: TrainConfig, model: nn.Module, length: int) -> None:
    """Raises ConfigError on all ranks where one differs: it would hang the others in mid-training."""
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
        values = [each[name] for each in of_ranks]
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
