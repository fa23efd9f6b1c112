"""Loss and outputs of a model, during a training and after it; its weights in one file."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainConfig
from training.config.plan import Plan
from training.data import ResumableSampler, SizedDataset, make_loader, move_to
from training.model.objective import LossFn
from training.run import Run, load
from training.state import TrainState
from training.strategies.choose import choose_device
from training.strategies.interface import Strategy
from training.strategies.precision import make_autocast
from training.strategies.single import Single


def connect(config: TrainConfig, plan: Plan) -> Strategy:
    """Connect the ranks that torchrun started; each holds the whole model and sees its share of the samples."""
    device = choose_device()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Single(plan, device)
    from training.strategies.ranks import Connected

    return Single(plan, device, Connected(device, config.recovery_timeout))


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: SizedDataset, strategy: Strategy, loss_fn: LossFn, workers: int
) -> float:
    """Return the mean loss over all samples, on all ranks."""
    sampler = make_sampler(dataset, strategy)
    autocast = make_autocast(strategy.plan.precision, strategy.device)
    total, remaining = torch.zeros((), dtype=torch.float64), len(sampler)
    model.to(strategy.device).eval()
    for batch in make_loader(dataset, sampler, strategy.plan.batch_size, workers):
        inputs, targets = move_to(batch, strategy.device)
        size = min(remaining, strategy.plan.batch_size)
        remaining -= size
        with autocast():
            loss = loss_fn(model(inputs), targets)
        total += loss.double().cpu() * size
    sums = strategy.ranks.sum(torch.stack([total, torch.tensor(len(sampler), dtype=torch.float64)]))
    return float(sums[0] / sums[1])


@torch.no_grad()
def predict(model: nn.Module, dataset: SizedDataset, strategy: Strategy, workers: int) -> Tensor:
    """Return the outputs for all samples in the dataset's order, in host memory of every rank."""
    sampler = make_sampler(dataset, strategy)
    autocast = make_autocast(strategy.plan.precision, strategy.device)
    outputs: list[Tensor] = []
    model.to(strategy.device).eval()
    for batch in make_loader(dataset, sampler, strategy.plan.batch_size, workers):
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        with autocast():
            outputs.append(model(move_to(inputs, strategy.device)).float().cpu())
    own = torch.cat(outputs)[: len(sampler)]  # a rank without samples computed a filler
    of_ranks: list[Tensor] = strategy.ranks.gather(own)
    ordered = own.new_empty((len(dataset), *own.shape[1:]))
    for rank, part in enumerate(of_ranks):
        ordered[rank :: len(of_ranks)] = part
    return ordered


def make_sampler(dataset: SizedDataset, strategy: Strategy) -> ResumableSampler:
    return ResumableSampler(
        len(dataset), rank=strategy.data_rank, world_size=strategy.data_ranks, shuffle=False
    )


def export(state: TrainState, path: Path) -> None:
    """Write the whole model's ``state_dict`` to ``path`` atomically. All ranks must call this.

    The file does not depend on the strategy; ``torch.load(path, weights_only=True)`` reads it.
    """
    whole = state.full_model_state()
    if state.strategy.ranks.rank != 0:
        return
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(whole, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


@torch.no_grad()
def validate(run: Run, dataset: SizedDataset) -> float:
    """Return the mean loss over ``dataset``, each sample once over all ranks; waits for the result."""
    strategy = run.strategy
    sampler = ResumableSampler(
        len(dataset),
        rank=strategy.data_rank,
        world_size=strategy.data_ranks,
        shuffle=False,
        seed=run.config.seed,
    )
    # Not the DDP wrapper, which would make the ranks wait for each other.
    model = run.state.model
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=strategy.device)
    remaining = own_samples = len(sampler)
    for batch in load(run, dataset, sampler):
        inputs, targets = move_to(batch, strategy.device)
        size = min(remaining, strategy.plan.batch_size)
        remaining -= size
        total += mean_loss(run, model, inputs, targets).double() * size
        run.reporter.heartbeat()
    model.train()
    # Ranks that share samples count them equally often, which does not change the mean.
    sums = strategy.ranks.sum(torch.stack([total.cpu(), torch.tensor(own_samples, dtype=torch.float64)]))
    return float(sums[0] / sums[1])


def mean_loss(run: Run, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
    if run.strategy.staged:
        return run.strategy.evaluate_stages(inputs, targets, run.loss_fn)
    with run.around_forward():
        return run.loss_fn(model(inputs), targets)
