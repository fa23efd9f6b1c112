"""One rank on one device."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


class Single:
    """The plain step; also what the other strategies' results are compared with."""

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, model: nn.Module) -> nn.Module:
        return model

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)

    def clip(self, model: nn.Module, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def agree(self, *, save: bool, stop: bool) -> tuple[bool, bool]:
        return save, stop

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def sum(self, numbers: Tensor) -> Tensor:
        return numbers

    def close(self) -> None:
        """Nothing to end."""
