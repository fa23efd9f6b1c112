"""The training loop, to be read from top to bottom.

Words: a step is one optimizer update; it consists of micro-batches, each one forward and
backward pass on every rank.  N ranks with batch size B and k micro-batches train on up to N*B*k
samples in a step; the last step of an epoch takes what is left.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from training.checkpoint import Checkpointer
from training.config import TrainConfig
from training.data import ResumableSampler, SizedDataset, make_loader, move_to
from training.fault import StopRequest
from training.report import Reporter
from training.state import LossFn, TrainState, capture_rng


class Strategy(Protocol):
    """How one training step is spread over the ranks of a job."""

    device: torch.device
    rank: int
    world_size: int

    def prepare(self, model: nn.Module) -> nn.Module:
        """Shard or replicate the model; call once, before the first step."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward; gradients are exchanged only in the last micro-batch."""

    def backward(self, loss: Tensor) -> None:
        """Back-propagate."""

    def clip(self, model: nn.Module, max_norm: float) -> None:
        """Scale the gradients down to ``max_norm`` together, as if they lay on one rank."""

    def agree(self, *, save: bool, stop: bool) -> tuple[bool, bool]:
        """What any rank wished one call ago (with one rank: now); all ranks get the same answer.

        Late by a step, so that no rank waits for another.
        """

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, on all ranks; waits for them."""

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over ranks, on all ranks; waits for them."""

    def close(self) -> None:
        """End what ``prepare`` and the constructor started."""


@dataclass(slots=True)
class Run:
    """What stays the same while a training runs."""

    config: TrainConfig
    strategy: Strategy
    model: nn.Module  # as ``Strategy.prepare`` gave it back
    loss_fn: LossFn
    state: TrainState
    train_dataset: SizedDataset
    val_dataset: SizedDataset | None
    checkpointer: Checkpointer
    reporter: Reporter
    wishes: StopRequest
    total_steps: int
    saved_s: float = 0.0  # monotonic time of the newest save
    steps_here: int = 0  # steps since this process started


def train(run: Run) -> bool:
    """Train to the end; False when a stop request ended it, after a save.

    A saved step is never repeated: resuming continues with the samples that come next.
    """
    state = run.state
    run.saved_s = time.monotonic()
    run.reporter.total_steps(run.total_steps)
    while state.step < run.total_steps:
        run.model.train()
        loader = make_loader(run.train_dataset, state.sampler, run.config.batch_size, run.config.num_workers)
        if not train_epoch(run, loader):
            return False
    save(run)
    return True


def train_epoch(run: Run, loader: DataLoader[Any]) -> bool:
    """The rest of an epoch; False when a stop request ended it."""
    state, batches = run.state, iter(loader)
    epoch_ended = False
    while not epoch_ended and state.step < run.total_steps:
        start_s = time.perf_counter()
        samples = min(state.sampler.left, samples_in_step(run.config, run.strategy.world_size))
        loss = train_step(run, batches, samples)
        state.step += 1
        run.steps_here += 1
        if run.steps_here == 1:  # the optimizer has its state now
            run.checkpointer.allocate(state.state_dict([capture_rng()]))
        epoch_ended = state.sampler.advance(samples)
        run.reporter.report(
            state.step,
            loss=loss,
            lr=state.optimizer.param_groups[0]["lr"],
            samples_per_s=samples / (time.perf_counter() - start_s),
        )
        if epoch_ended and run.val_dataset is not None:
            run.reporter.report(state.step, val_loss=evaluate(run, run.val_dataset))
        if save_if_due(run):
            return False
    return True


def train_step(run: Run, batches: Any, samples: int) -> Tensor:
    """One optimizer update on the next ``samples`` of all ranks; returns this rank's mean loss.

    Each micro-batch weighs as many samples as it has, so that the gradient is that of the mean
    over all of them, however they are split.  The loss stays on the device: reading it would wait.
    """
    config, strategy, sampler = run.config, run.strategy, run.state.sampler
    in_micro_batch = config.batch_size * strategy.world_size
    mine = sampler.rank_count(samples)
    losses: list[Tensor] = []
    for start in range(0, samples, in_micro_batch):
        inputs, targets = move_to(next(batches), strategy.device)
        here = sampler.rank_count(min(in_micro_batch, samples - start))
        with strategy.micro_batch(last=start + in_micro_batch >= samples):
            with autocast(run):
                loss = run.loss_fn(run.model(inputs), targets)
            strategy.backward(weigh(loss, here * strategy.world_size / samples))
        losses.append(weigh(loss.detach(), here / max(mine, 1)))
        run.reporter.heartbeat()
    if config.max_grad_norm is not None:
        strategy.clip(run.model, config.max_grad_norm)
    run.state.optimizer.step()
    run.state.optimizer.zero_grad(set_to_none=True)
    if run.state.scheduler is not None:
        run.state.scheduler.step()
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


@torch.no_grad()
def evaluate(run: Run, dataset: SizedDataset) -> float:
    """The mean loss over ``dataset``, each sample once over all ranks; waits for the result."""
    strategy = run.strategy
    sampler = ResumableSampler(
        len(dataset), rank=strategy.rank, world_size=strategy.world_size, shuffle=False, seed=run.config.seed
    )
    model = run.state.model  # without the wrapper, whose ranks would wait for each other
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=strategy.device)
    left = mine = len(sampler)
    for inputs, targets in make_loader(dataset, sampler, run.config.batch_size, run.config.num_workers):
        here = min(left, run.config.batch_size)
        left -= here
        inputs, targets = move_to((inputs, targets), strategy.device)
        with autocast(run):
            total += run.loss_fn(model(inputs), targets).double() * here
        run.reporter.heartbeat()
    model.train()
    sums = strategy.sum(torch.stack([total.cpu(), torch.tensor(mine, dtype=torch.float64)]))
    return float(sums[0] / sums[1])


def save_if_due(run: Run) -> bool:
    """Save where a step, the clock or a signal wants it; True when the run shall stop."""
    config = run.config
    by_clock = (
        config.checkpoint_every_s is not None and time.monotonic() - run.saved_s >= config.checkpoint_every_s
    )
    wants_save = run.wishes.save or (by_clock and run.strategy.rank == 0)
    save_agreed, stop_agreed = run.strategy.agree(save=wants_save, stop=run.wishes.stop)
    by_step = (
        config.checkpoint_every_steps is not None and run.state.step % config.checkpoint_every_steps == 0
    )
    if save_agreed or stop_agreed or by_step:
        save(run)
    return stop_agreed


def save(run: Run) -> None:
    """Save this step; all ranks call it at the same step, each gives its random generators."""
    run.wishes.save = False
    run.saved_s = time.monotonic()
    run.checkpointer.save(run.state.state_dict(run.strategy.gather(capture_rng())), run.state.step)


def weigh(loss: Tensor, share: float) -> Tensor:
    """The product, where it is one: the common case saves two kernels."""
    return loss if share == 1 else loss * share


def samples_in_step(config: TrainConfig, world_size: int) -> int:
    return config.batch_size * config.gradient_accumulation_steps * world_size


def autocast(run: Run) -> AbstractContextManager[Any]:
    if run.config.precision == "fp32":
        return nullcontext()
    return torch.autocast(run.strategy.device.type, torch.bfloat16)
