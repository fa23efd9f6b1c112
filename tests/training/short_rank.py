"""Two ranks of which one finds no memory where the other waits for it: ``short_rank.py STRATEGY PLACE``."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.training.strategy_runs import BATCH, loss_fn, make_data, make_model
from training import TrainConfig, Trainer


class ShortOptimizer(torch.optim.SGD):
    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 2:
            fail()
        return super().step(closure)


def fail() -> None:
    if os.environ["RANK"] == "1":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has no more.")


def main() -> None:
    strategy, place = sys.argv[1:]
    passes = 0

    def fail_in_third(module: nn.Module, inputs: Any) -> None:
        nonlocal passes
        passes += module.training
        if passes == 3:
            fail()

    model = make_model(1)
    if place == "pass":
        model.get_submodule("blocks.1" if strategy != "pipeline" else "blocks.3").register_forward_pre_hook(
            fail_in_third
        )
    optimizer = ShortOptimizer if place == "optimizer" else torch.optim.SGD
    config = TrainConfig(
        strategy=strategy,  # type: ignore[arg-type]  # the test gives only names of strategies
        batch_size=BATCH if strategy in ("tensor", "pipeline") else BATCH // 2,
        checkpoint_every=None,
        epochs=3,
    )
    try:
        Trainer(config).fit(
            model, make_data(), loss_fn=loss_fn, optimizer=lambda each: optimizer(each.parameters(), lr=0.1)
        )
    except torch.OutOfMemoryError as error:
        Path(f"{strategy}-{place}.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(1)


if __name__ == "__main__":
    main()
