"""The mean loss over a dataset in the midst of a training."""

from typing import Any

import torch
from torch import Tensor, nn

from training.data import ResumableSampler, SizedDataset, move_to
from training.run import Run, load


@torch.no_grad()
def evaluate(run: Run, dataset: SizedDataset) -> float:
    """The mean loss over ``dataset``, each sample once over all ranks; waits for the result."""
    strategy = run.strategy
    sampler = ResumableSampler(
        len(dataset),
        rank=strategy.data_rank,
        world_size=strategy.data_ranks,
        shuffle=False,
        seed=run.config.seed,
    )
    # DDP's wrapper would make the ranks wait for each other.
    model = run.state.model
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=strategy.device)
    left = mine = len(sampler)
    for batch in load(run, dataset, sampler):
        inputs, targets = move_to(batch, strategy.device)
        here = min(left, strategy.plan.batch_size)
        left -= here
        total += mean_loss(run, model, inputs, targets).double() * here
        run.reporter.heartbeat()
    model.train()
    # Ranks that share samples count them as often as each other, which the mean does not notice.
    sums = strategy.ranks.sum(torch.stack([total.cpu(), torch.tensor(mine, dtype=torch.float64)]))
    return float(sums[0] / sums[1])


def mean_loss(run: Run, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
    if run.strategy.staged:
        return run.strategy.evaluate_stages(inputs, targets, run.loss_fn)
    with run.around_forward():
        return run.loss_fn(model(inputs), targets)
