"""Prints the clock after the first optimizer step of two ranks; with ``ours`` the step is the Trainer's."""

import os
import sys
import time

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """One that says when it has stepped."""
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(tell)
    return optimizer


def tell(*_: object) -> None:
    if os.environ["RANK"] == "0":
        sys.stdout.write(f"stepped {time.time()}\n")
        sys.stdout.flush()


def raw() -> None:
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = make_optimizer(model)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    distributed.destroy_process_group()


def ours() -> None:
    from torch.utils.data import TensorDataset

    from training import TrainConfig, Trainer

    data: tuple[Tensor, Tensor] = (torch.randn(32, 16), torch.randn(32, 16))
    Trainer(TrainConfig(batch_size=8, max_steps=1)).fit(
        nn.Linear(16, 16), TensorDataset(*data), optimizer=make_optimizer
    )


if __name__ == "__main__":
    ours() if sys.argv[1:] == ["ours"] else raw()
