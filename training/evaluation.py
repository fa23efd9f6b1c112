"""Loss, metrics and outputs of a model, during a training and after it."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from training import data
from training.config import ConfigError, TrainConfig
from training.config.plan import Plan
from training.data import AnySampler, DataError, SizedDataset, StreamSampler, is_stream, move_to
from training.model.batches import Compared, Objective, pair_of_stages
from training.model.metrics import Metrics, MetricSet
from training.strategies.choose import choose_device
from training.strategies.interface import Strategy
from training.strategies.single import Single


def connect(config: TrainConfig, plan: Plan) -> Strategy:
    """Connect the ranks that torchrun started; each holds the whole model and sees its share of the samples."""
    device = choose_device()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Single(plan, device)
    from training.strategies.ranks import Connected

    return Single(plan, device, Connected(device, config.recovery_timeout))


@dataclass(slots=True)
class Task:
    """What to do with the samples of an evaluation, and how to read them."""

    strategy: Strategy
    objective: Objective
    around_forward: Callable[[], AbstractContextManager[Any]]
    load: Callable[[Any, AnySampler], DataLoader[Any]]
    metrics: Metrics | None = None
    heartbeat: Callable[[], object] = lambda: None


@torch.no_grad()
def measure(task: Task, model: nn.Module, dataset: Any) -> dict[str, float]:
    """Return ``loss`` (the mean) and the metrics over ``dataset``, each sample once over all ranks."""
    strategy = task.strategy
    sampler = make_sampler(dataset, strategy)
    metrics = MetricSet(task.metrics, strategy.device, strategy.ranks.size, strategy.ranks.gather)
    total = torch.zeros((), dtype=torch.float64, device=strategy.device)
    samples = 0
    model.to(strategy.device).eval() if not strategy.staged else model.eval()
    for size, batch in _with_sizes(task.load(dataset, sampler), sampler, strategy.plan.batch_size):
        compared = _compare(task, model, move_to(batch, strategy.device), size)
        if compared.loss is not None:
            total += compared.loss.double() * size
            samples += size
        if metrics:
            metrics.update(compared.outputs, compared.targets, size)
        task.heartbeat()
    # Ranks that share samples count them equally often, which does not change the mean.
    sums = strategy.ranks.sum(torch.stack([total.cpu(), torch.tensor(samples, dtype=torch.float64)]))
    loss = {"loss": float(sums[0] / sums[1])} if sums[1] else {}
    return {**loss, **(metrics.compute() if metrics else {})}


def _with_sizes(loader: DataLoader[Any], sampler: AnySampler, batch_size: int) -> Iterator[tuple[int, Any]]:
    """Iterate over batches with the number of this rank's samples, which is 0 for a filler."""
    if isinstance(sampler, StreamSampler):
        for count, batch in loader:
            yield sampler.rank_count(count), batch
        return
    remaining = len(sampler)
    for batch in loader:
        size = min(remaining, batch_size)
        remaining -= size
        yield size, batch


def _compare(task: Task, model: nn.Module, batch: Any, size: int) -> Compared:
    if task.strategy.staged:
        if task.metrics:
            raise ConfigError(
                "metrics need the outputs, which strategy 'pipeline' does not gather; remove them."
            )
        loss = task.strategy.evaluate_stages(*pair_of_stages(batch), task.objective.pair_loss)
        return Compared(loss, None, None)
    with task.around_forward():
        return task.objective.validate(model, batch, size)


@torch.no_grad()
def predict(task: Task, model: nn.Module, dataset: SizedDataset) -> Tensor:
    """Return the outputs for all samples, in the dataset's order, on all ranks.

    Raises:
        DataError: the dataset is a stream, which has no order to return to.
    """
    if is_stream(dataset):
        raise DataError("predict() needs a dataset that is read by index; this one is a stream.")
    strategy = task.strategy
    sampler = make_sampler(dataset, strategy)
    outputs: list[Tensor] = []
    model.to(strategy.device).eval()
    for batch in task.load(dataset, sampler):
        with task.around_forward():
            outputs.append(task.objective.predict(model, move_to(batch, strategy.device)).float().cpu())
    own = torch.cat(outputs)[: len(sampler)]  # a rank without samples computed a filler
    of_ranks: list[Tensor] = strategy.ranks.gather(own)
    ordered = own.new_empty((len(dataset), *own.shape[1:]))
    for rank, part in enumerate(of_ranks):
        ordered[rank :: len(of_ranks)] = part
    return ordered


def make_sampler(dataset: Any, strategy: Strategy, seed: int = 0) -> AnySampler:
    return data.make_sampler(
        dataset, rank=strategy.data_rank, world_size=strategy.data_ranks, shuffle=False, seed=seed
    )
