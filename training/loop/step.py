"""One step: forward and backward passes, retried with smaller micro-batches when out of memory, and the update."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from training import events
from training.config.words import say_names
from training.loop.run import Run, load
from training.memory.autotune import OutOfMemoryInStep, clear_memory, is_host_memory, is_out_of_memory
from training.memory.repeat import run_with_less
from training.model.batches import pair_of_stages


def train_step(run: Run, batches: Iterator[Any], samples: int) -> Tensor:
    """Make one optimizer update on the next ``samples`` of all ranks; return this rank's mean loss.

    On OOM the step is retried with smaller micro-batches; do not use ``batches`` again then (see ``Run.reread``).
    """
    loss = None if run.scarcity.careful else run_passes_alone(run, batches, samples)
    if loss is None:
        loss = run_passes_carefully(run, batches if run.scarcity.careful else None, samples)
    try:
        update(run)
    except Exception as error:
        if is_out_of_memory(error):
            end_without_memory(run, error, "the weights may be half updated")
        raise
    return loss


def run_passes_alone(run: Run, batches: Iterator[Any], samples: int) -> Tensor | None:
    """Call ``run_passes``; return None if a single rank ran out of memory.

    Raises:
        OutOfMemoryInStep: a rank ran out of memory while other ranks wait for it in an exchange.
    """
    try:
        return run_passes(run, batches, samples)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        strategy = run.strategy
        if not strategy.repeats:
            end_without_memory(run, error, f"this {strategy.plan.strategy} cannot drop an unfinished pass")
        if strategy.ranks.size > 1:
            end_without_memory(run, error, "the other ranks may be in an exchange")
    # Only after the error is released, because it keeps the failed step's tensors alive.
    run.state.optimizer.zero_grad(set_to_none=True)
    clear_memory()
    return None


def end_without_memory(run: Run, error: Exception, why: str) -> NoReturn:
    """End this rank, and so the others: a training can only continue safely from a saved step."""
    if is_host_memory(error):
        raise error
    rank = run.strategy.ranks.rank
    raise OutOfMemoryInStep(error, step=run.state.step + 1, rank=rank, why=why) from error


def run_passes_carefully(run: Run, batches: Iterator[Any] | None, samples: int) -> Tensor:
    """Call ``run_passes`` with smaller and smaller micro-batches until all ranks succeed; all ranks must call this.

    Gradients are exchanged only after all ranks have succeeded; strategies that exchange within a pass
    agree before each exchange.  The effective batch is unchanged, and the plan keeps the new size.
    ``batches`` serve the first attempt.
    """
    strategy, state, plan = run.strategy, run.state, run.strategy.plan
    streams = [] if batches is None else [batches]

    def passes(size: int) -> Tensor:
        if size != strategy.plan.batch_size:
            times = plan.batch_size * plan.gradient_accumulation_steps // size
            strategy.take_plan(replace(plan, batch_size=size, gradient_accumulation_steps=times))
            state.sampler.shares = None  # they belong to the larger size
        run.reread = not streams
        stream = streams.pop() if streams else run.stream(load(run, run.train_dataset, state.sampler))
        return run_passes(run, stream, samples, exchange=strategy.ranks.size == 1)

    try:
        loss, _ = run_with_less(
            passes,
            plan.batch_size,
            state.model,
            agree=strategy.ranks.least,
            forget=strategy.forget_passes,
            all_come=not strategy.staged,
            rank=strategy.ranks.rank,
            reporter=run.reporter,
            step=state.step + 1,
        )
    except Exception as error:
        if is_out_of_memory(error):
            end_without_memory(run, error, "other ranks wait for data from this one")
        raise
    return loss


def run_passes(run: Run, batches: Iterator[Any], samples: int, *, exchange: bool = True) -> Tensor:
    """Run the forward and backward passes of a step; without ``exchange`` gradients stay on each rank.

    Each micro-batch is weighted by its number of samples, so that the gradient equals the gradient of the
    mean over all samples, however they are split.  The loss stays on the device: reading it would block.
    """
    strategy, sampler = run.strategy, run.state.sampler
    in_micro_batch = strategy.plan.batch_size * strategy.data_ranks
    own_samples = sampler.rank_count(samples)
    losses: list[Tensor] = []
    run.balance.clock.start()
    for start in range(0, samples, in_micro_batch):
        batch = next(batches)
        last = start + in_micro_batch >= samples
        size = own_samples if last and not start else sampler.rank_count(min(in_micro_batch, samples - start))
        weight = size * strategy.data_ranks / samples
        loss = forward_backward(run, batch, weight, last=last, exchange=exchange)
        losses.append(weigh(loss, size / max(own_samples, 1)))
        run.reporter.heartbeat()
    strategy.end_passes()
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def forward_backward(run: Run, batch: Any, weight: float, *, last: bool, exchange: bool = True) -> Tensor:
    """Run one micro-batch, adding to the gradients of the step; return its mean loss, detached."""
    strategy, scaler = run.strategy, run.state.scaler
    if strategy.staged:
        return strategy.run_stages(*pair_of_stages(batch), run.objective.pair_loss, weight)
    with strategy.micro_batch(last=last, exchange=exchange):
        if run.plain:
            loss = run.objective.loss(run.model, batch)
        else:
            with run.around_forward():
                loss = run.objective.loss(run.model, batch)
        if last:
            run.balance.clock.stop()  # from here on, ranks wait for each other
        weighted = weigh(loss, weight)
        strategy.backward(scaler.scale(weighted) if scaler.used else weighted)
    return loss.detach()


def update(run: Run) -> None:
    """Clip, step the optimizer and the scheduler, clear the gradients."""
    strategy, state = run.strategy, run.state
    strategy.finish_gradients()
    if run.config.max_grad_norm is not None:
        state.scaler.unscale(state.optimizer)
        strategy.clip(state.model, run.config.max_grad_norm)
    for hook in run.hooks.before_update:
        hook(state)
    state.scaler.step(state.optimizer)
    strategy.after_step()
    state.optimizer.zero_grad(set_to_none=True)
    if state.scheduler is not None:
        state.scheduler.step()
    adapt(run)


def adapt(run: Run) -> None:
    """Rewrap the model to accept parameters without a gradient, once a step left some."""
    change = run.strategy.adapt()
    if change is None:
        return
    run.model, names = change
    step, text = run.state.step + 1, say_names(names)
    run.reporter.event(events.UNUSED_EVENT, step=step, parameters=text)
    if run.strategy.ranks.rank == 0:
        text = f"Step {step}: {text} got no gradient; find_unused_parameters is on from now on."
        print(text, flush=True)  # noqa: T201 -- for the run's log


def weigh(loss: Tensor, share: float) -> Tensor:
    """Multiply unless the share is 1, which is the common case and saves two kernels."""
    return loss if share == 1 else loss * share
