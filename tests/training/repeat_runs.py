"""Two ranks of which the second runs out of memory once, in the third step: as ``strategy_runs``, cases ``STRATEGY:PLACE``."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.training.strategy_runs import CASES, loss_fn, main, make_model, train_as
from training.memory.meters import PRETEND_RANK_VARIABLE, PRETEND_VARIABLE

ALL_CASES = {**CASES, "local-sgd": {"strategy": "ddp", "local_sgd_steps": 4}}
EPOCHS = 2
FAILS_IN = 3  # passes of a block; a pipeline has several parts in a batch
SHORT_RANK = 1


class Once:
    """Runs out of memory at the third call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == FAILS_IN:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def spoil(model: nn.Module, place: str, fail: Once) -> Callable[[Tensor, Tensor], Tensor]:
    """Let ``fail`` be called in the forward or backward pass of a block, or in the loss, which is returned."""
    where, _, block = place.partition("-")

    def before(module: nn.Module, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            fail()

    def after(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if module.training and output.requires_grad:
            output.register_hook(lambda gradient: fail())

    def short_loss(scores: Tensor, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            fail()
        return loss_fn(scores, targets)

    if where == "loss":
        return short_loss
    module = model.get_submodule(f"blocks.{block}")
    if where == "forward":
        module.register_forward_pre_hook(before)
    else:
        module.register_forward_hook(after)
    return loss_fn


def run_case(name: str, rank: int, folder: Path) -> dict[str, Any]:
    # Somewhere memory is scarce, so ranks make sure of each other.
    os.environ.update({PRETEND_VARIABLE: str(1 << 40), PRETEND_RANK_VARIABLE: "9"})
    strategy, place = name.split(":")
    model = make_model(seed=1 + rank)
    used = spoil(model, place, Once()) if rank == SHORT_RANK and place != "nowhere" else loss_fn
    return train_as(ALL_CASES[strategy], name, rank, folder, model, used, EPOCHS)


if __name__ == "__main__":
    main(run_case)
