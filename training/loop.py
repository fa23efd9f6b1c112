"""The training loop, to be read from top to bottom.

Words: a step is one optimizer update; it consists of micro-batches, each one forward and
backward pass on every rank.  N data-parallel ranks with batch size B and k micro-batches train on
up to N*B*k samples in a step; the last step of an epoch takes what is left.
"""

import time
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from training.data import start_epoch
from training.evaluation import evaluate
from training.run import Run, load
from training.saving import save, save_is_due
from training.state import capture_rng
from training.step import train_step
from training.strategies.ranks import NO_WISHES


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
        unused=bool(run.strategy.unused) and not run.strategy.expects_unused,
        busy_s=run.balance.clock.take(),
    )
    by_step = config.checkpoint_every_steps is not None and state.step % config.checkpoint_every_steps == 0
    if agreed is not NO_WISHES:
        run.balance.note(state.step, agreed.busy_s)
        run.scarcity.take(agreed.careful)
        run.strategy.expects_unused |= agreed.unused
        if agreed.bad_loss:
            run.watch.end(run.strategy.ranks)
    if agreed.save or agreed.stop or by_step:
        save(run)
    return agreed.stop
