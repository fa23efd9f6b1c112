"""What a trained model is for: its loss on other data, its outputs, its weights in one file."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainConfig
from training.data import ResumableSampler, SizedDataset, make_loader, move_to
from training.plan.types import Plan
from training.precision import make_autocast
from training.state import LossFn, TrainState
from training.strategies.choose import choose_device
from training.strategies.interface import Strategy
from training.strategies.single import Single


def connect(config: TrainConfig, plan: Plan) -> Strategy:
    """Whole models on the ranks that torchrun started, each of which sees its share of the samples."""
    device = choose_device()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Single(plan, device)
    from training.strategies.ranks import Connected

    return Single(plan, device, Connected(device, config.recovery_timeout))


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: SizedDataset, strategy: Strategy, loss_fn: LossFn, workers: int
) -> float:
    """The mean loss over all samples, on all ranks."""
    sampler = in_order(dataset, strategy)
    autocast = make_autocast(strategy.plan.precision, strategy.device)
    total, left = torch.zeros((), dtype=torch.float64), len(sampler)
    model.to(strategy.device).eval()
    for batch in make_loader(dataset, sampler, strategy.plan.batch_size, workers):
        inputs, targets = move_to(batch, strategy.device)
        here = min(left, strategy.plan.batch_size)
        left -= here
        with autocast():
            loss = loss_fn(model(inputs), targets)
        total += loss.double().cpu() * here
    sums = strategy.ranks.sum(torch.stack([total, torch.tensor(len(sampler), dtype=torch.float64)]))
    return float(sums[0] / sums[1])


@torch.no_grad()
def predict(model: nn.Module, dataset: SizedDataset, strategy: Strategy, workers: int) -> Tensor:
    """The outputs for all samples, in the dataset's order and on the host of every rank."""
    sampler = in_order(dataset, strategy)
    autocast = make_autocast(strategy.plan.precision, strategy.device)
    outputs: list[Tensor] = []
    model.to(strategy.device).eval()
    for batch in make_loader(dataset, sampler, strategy.plan.batch_size, workers):
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        with autocast():
            outputs.append(model(move_to(inputs, strategy.device)).float().cpu())
    mine = torch.cat(outputs)[: len(sampler)]  # a rank without samples has computed one to fill up
    of_ranks: list[Tensor] = strategy.ranks.gather(mine)
    ordered = mine.new_empty((len(dataset), *mine.shape[1:]))
    for rank, part in enumerate(of_ranks):
        ordered[rank :: len(of_ranks)] = part
    return ordered


def in_order(dataset: SizedDataset, strategy: Strategy) -> ResumableSampler:
    return ResumableSampler(
        len(dataset), rank=strategy.data_rank, world_size=strategy.data_ranks, shuffle=False
    )


def export(state: TrainState, path: Path) -> None:
    """Write the whole model's ``state_dict`` to ``path``: whole or not at all; all ranks call it.

    Any strategy gives the same file, which ``torch.load(path, weights_only=True)`` reads.
    """
    whole: dict[str, Any] = state.full_model_state()
    if state.strategy.ranks.rank != 0:
        return
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(whole, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
