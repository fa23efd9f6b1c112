"""The training loop, to be read from top to bottom.

Words: a step is one optimizer update; it consists of micro-batches, each one forward and
backward pass on every rank.  N data-parallel ranks with batch size B and k micro-batches train on
up to N*B*k samples in a step; the last step of an epoch takes what is left.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from training.balance import Balance
from training.callbacks import Callback
from training.checkpoint import Checkpointer
from training.checkpoint.policy import SavePolicy
from training.config import TrainConfig
from training.data import ResumableSampler, SizedDataset, make_loader, move_to, on_device, start_epoch
from training.fault import StopRequest
from training.losses import LossWatch
from training.memory.autotune import clear_memory, is_out_of_memory, run_with_less
from training.memory.scarcity import Scarcity
from training.probe import CommunicationProbe
from training.report import Reporter
from training.state import LossFn, TrainState, capture_rng
from training.strategies.interface import Strategy
from training.strategies.ranks import NO_WISHES


@dataclass(slots=True)
class Run:
    """What stays the same while a training runs."""

    config: TrainConfig
    strategy: Strategy
    model: nn.Module  # as ``Strategy.prepare`` gave it back
    around_forward: Callable[[], AbstractContextManager[Any]]
    loss_fn: LossFn
    state: TrainState
    train_dataset: SizedDataset
    val_dataset: SizedDataset | None
    checkpointer: Checkpointer
    reporter: Reporter
    wishes: StopRequest
    watch: LossWatch
    balance: Balance
    probe: CommunicationProbe
    scarcity: Scarcity
    total_steps: int
    callbacks: Sequence[Callback] = ()
    policy: SavePolicy | None = None  # where the cost of saves says how often
    saved_s: float = 0.0  # monotonic time of the newest save
    steps_here: int = 0  # steps since this process started
    reread: bool = False  # whether a repeated step left the loader's batches out of step
    moves: bool = field(init=False)  # whether batches must be copied to the device
    plain: bool = field(init=False)  # whether nothing is to be opened around a forward pass

    def stream(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """The loader's batches, on the device."""
        return on_device(loader, self.strategy.device) if self.moves else iter(loader)

    def __post_init__(self) -> None:
        self.moves = self.strategy.device.type != "cpu"
        self.plain = self.around_forward is nullcontext and not self.state.scaler.used


def train(run: Run) -> bool:
    """Train to the end; False when a stop request ended it, after a save.

    A saved step is never repeated: resuming continues with the samples that come next.

    Raises:
        BadLoss: a loss was not finite, and ``stop_on_nan`` is set.
    """
    state = run.state
    run.saved_s = time.monotonic()
    run.reporter.total_steps(run.total_steps)
    loader: DataLoader[Any] | None = None
    made_for = 0
    while state.step < run.total_steps:
        run.model.train()
        if loader is None or not run.config.persistent_workers or made_for != run.strategy.plan.batch_size:
            made_for = run.strategy.plan.batch_size
            loader = load(run, run.train_dataset, state.sampler, persistent=run.config.persistent_workers)
        start_epoch(loader, state.sampler)
        if not train_epoch(run, loader):
            return False
        run.balance.after_epoch(state)
    save(run)
    run.watch.finish()
    return True


def train_epoch(run: Run, loader: DataLoader[Any]) -> bool:
    """The rest of an epoch; False when a stop request ended it."""
    state, in_step = run.state, run.strategy.plan.samples_per_step
    batches = run.stream(loader)
    epoch_ended = False
    while not epoch_ended and state.step < run.total_steps:
        start_s = time.perf_counter()
        samples = min(state.sampler.left, in_step)
        if run.probe.is_due(run.steps_here):
            loss, travelling = run.probe.measure(partial(train_step, run, batches, samples))
            run.reporter.report(state.step + 1, comm_percent=round(100 * travelling, 2))
        else:
            loss = train_step(run, batches, samples)
        state.step += 1
        run.steps_here += 1
        if run.steps_here == 1 and not run.strategy.gathers:  # the optimizer has its state now
            run.checkpointer.allocate(state.state_dict([capture_rng()]))
        epoch_ended = state.sampler.advance(samples)
        if run.reread:
            run.reread = False
            batches = run.stream(load(run, run.train_dataset, state.sampler))
        shown = run.watch.look(state.step, loss)
        took_s = time.perf_counter() - start_s
        if run.policy is not None:
            run.policy.note_step(took_s, writing=run.checkpointer.is_writing)
        run.reporter.report(
            state.step,
            loss=shown,
            lr=state.optimizer.param_groups[0]["lr"],
            samples_per_s=samples / took_s,
        )
        if epoch_ended:
            finish_epoch(run)
        if end_step(run):
            return False
    return True


def finish_epoch(run: Run) -> None:
    """Validate, and let the callbacks have their say: one that wants the end makes this step the last."""
    state, val_loss = run.state, None
    if run.val_dataset is not None:
        val_loss = evaluate(run, run.val_dataset)
        run.reporter.report(state.step, val_loss=val_loss)
    ends = [callback.after_epoch(state, val_loss) for callback in run.callbacks]  # all are asked
    if any(ends):
        run.total_steps = state.step


def train_step(run: Run, batches: Iterator[Any], samples: int) -> Tensor:
    """One optimizer update on the next ``samples`` of all ranks; returns this rank's mean loss.

    Where memory runs out the step begins anew with smaller micro-batches, for which ``batches`` are then
    of no more use.
    """
    loss = None if run.scarcity.careful else run_passes_alone(run, batches, samples)
    if loss is None:
        loss = run_passes_carefully(run, batches if run.scarcity.careful else None, samples)
    update(run)
    return loss


def run_passes_alone(run: Run, batches: Iterator[Any], samples: int) -> Tensor | None:
    """As ``run_passes``; None where a rank without others ran out of memory."""
    try:
        return run_passes(run, batches, samples)
    except Exception as error:
        if not run.strategy.repeats or run.strategy.ranks.size > 1 or not is_out_of_memory(error):
            raise
    # Not before the error is gone, which keeps the failed step's tensors alive.
    run.state.optimizer.zero_grad(set_to_none=True)
    clear_memory()
    return None


def run_passes_carefully(run: Run, batches: Iterator[Any] | None, samples: int) -> Tensor:
    """As ``run_passes``, again with smaller micro-batches as long as a rank has no memory; all ranks call it.

    Gradients are kept back until all ranks have succeeded.  The effective batch stays, and the plan
    has the new size afterwards.  ``batches`` serve the first attempt.
    """
    strategy, state, plan = run.strategy, run.state, run.strategy.plan
    streams = [] if batches is None else [batches]

    def passes(size: int) -> Tensor:
        if size != strategy.plan.batch_size:
            times = plan.batch_size * plan.gradient_accumulation_steps // size
            strategy.plan = replace(plan, batch_size=size, gradient_accumulation_steps=times)
            state.sampler.shares = None  # they are of the larger size
        run.reread = not streams
        stream = streams.pop() if streams else run.stream(load(run, run.train_dataset, state.sampler))
        return run_passes(run, stream, samples, exchange=strategy.ranks.size == 1)

    loss, _ = run_with_less(
        passes,
        plan.batch_size,
        state.model,
        agree=strategy.ranks.least,
        rank=strategy.ranks.rank,
        reporter=run.reporter,
        step=state.step + 1,
    )
    return loss


def run_passes(run: Run, batches: Iterator[Any], samples: int, *, exchange: bool = True) -> Tensor:
    """The forward and backward passes of a step; gradients stay with each rank unless ``exchange``.

    Each micro-batch weighs as many samples as it has, so that the gradient is that of the mean
    over all of them, however they are split.  The loss stays on the device: reading it would wait.
    """
    strategy, sampler = run.strategy, run.state.sampler
    in_micro_batch = strategy.plan.batch_size * strategy.data_ranks
    mine = sampler.rank_count(samples)
    losses: list[Tensor] = []
    run.balance.clock.start()
    for start in range(0, samples, in_micro_batch):
        inputs, targets = next(batches)
        last = start + in_micro_batch >= samples
        here = mine if last and not start else sampler.rank_count(min(in_micro_batch, samples - start))
        weight = here * strategy.data_ranks / samples
        loss = forward_backward(run, inputs, targets, weight, last=last, exchange=exchange)
        losses.append(weigh(loss, here / max(mine, 1)))
        run.reporter.heartbeat()
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def forward_backward(
    run: Run, inputs: Any, targets: Any, weight: float, *, last: bool, exchange: bool = True
) -> Tensor:
    """One micro-batch; gradients are added up over those of a step.  Returns the mean loss, detached."""
    strategy, scaler = run.strategy, run.state.scaler
    if strategy.staged:
        return strategy.run_stages(inputs, targets, run.loss_fn, weight)
    with strategy.micro_batch(last=last and exchange):
        if run.plain:
            loss = run.loss_fn(run.model(inputs), targets)
        else:
            with run.around_forward():
                loss = run.loss_fn(run.model(inputs), targets)
        if last:
            run.balance.clock.stop()  # from here on ranks wait for each other
        weighed = weigh(loss, weight)
        strategy.backward(scaler.scale(weighed) if scaler.used else weighed)
    return loss.detach()


def update(run: Run) -> None:
    """Clip, step the optimizer and the scheduler, forget the gradients."""
    strategy, state = run.strategy, run.state
    strategy.finish_gradients()
    if run.config.max_grad_norm is not None:
        state.scaler.unscale(state.optimizer)
        strategy.clip(state.model, run.config.max_grad_norm)
    state.scaler.step(state.optimizer)
    strategy.after_step()
    state.optimizer.zero_grad(set_to_none=True)
    if state.scheduler is not None:
        state.scheduler.step()


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


def end_step(run: Run) -> bool:
    """Do what ranks agree on: save where a step, the clock or a signal wants it.  True: the run shall stop.

    Raises:
        BadLoss: on all ranks, where one of them saw a loss that is not finite and that shall stop it.
    """
    config, state, wishes = run.config, run.state, run.wishes
    by_clock = save_is_due(run)
    agreed = run.strategy.ranks.agree(
        save=wishes.save or (by_clock and run.strategy.ranks.rank == 0),
        stop=wishes.stop,
        bad_loss=run.watch.stops,
        careful=run.scarcity.look(),
        busy_s=run.balance.clock.take(),
    )
    by_step = config.checkpoint_every_steps is not None and state.step % config.checkpoint_every_steps == 0
    if agreed is not NO_WISHES:
        run.balance.note(state.step, agreed.busy_s)
        run.scarcity.take(agreed.careful)
        if agreed.bad_loss:
            run.watch.end(run.strategy.ranks)
    if agreed.save or agreed.stop or by_step:
        save(run)
    return agreed.stop


def save_is_due(run: Run) -> bool:
    """By the clock, which ranks need not read alike: they agree on what this says."""
    if run.policy is not None:
        return run.policy.is_due()
    every_s = run.config.checkpoint_every_s
    return every_s is not None and time.monotonic() - run.saved_s >= every_s


def save(run: Run) -> None:
    """Save this step; all ranks call it at the same step, each gives its random generators."""
    run.wishes.save = False
    run.saved_s = time.monotonic()
    run.checkpointer.save(run.state.state_dict(run.strategy.ranks.gather(capture_rng())), run.state.step)
    if run.policy is not None:
        run.policy.note_save(run.checkpointer.stall_s)


def load(
    run: Run, dataset: SizedDataset, sampler: ResumableSampler, *, persistent: bool = False
) -> DataLoader[Any]:
    config = run.config
    return make_loader(
        dataset,
        sampler,
        run.strategy.plan.batch_size,
        config.num_workers,
        pin_memory=config.pin_memory,
        prefetch_factor=config.prefetch_factor,
        persistent_workers=persistent,
    )


def weigh(loss: Tensor, share: float) -> Tensor:
    """The product, where it is one: the common case saves two kernels."""
    return loss if share == 1 else loss * share
