"""The training loop, to be read from top to bottom.

A step is one optimizer update.  It consists of micro-batches, each one forward and backward pass on
every rank.  N data-parallel ranks with batch size B and k micro-batches train on up to N*B*k samples
per step; the last step of an epoch takes the remaining ones.
"""

import time
from collections.abc import Mapping
from functools import partial
from math import isinf
from typing import Any

from torch.utils.data import DataLoader

from training.data import StreamSampler, start_epoch
from training.evaluation import Task, measure
from training.loop.run import Run, count_steps, load
from training.loop.saving import save, save_is_due
from training.loop.step import train_step
from training.rng import capture_rng
from training.strategies.ranks import NO_REQUESTS


def train_or_tell(run: Run) -> bool:
    """As ``train``, telling the callbacks of an error."""
    try:
        return train(run)
    except BaseException as error:
        run.hooks.call("on_exception", run.state, error)
        raise


def train(run: Run) -> bool:
    """Train to the end; return False if a stop request ended the training, after a save.

    A saved step is never repeated: a resumed run continues with the next samples.

    Raises:
        BadLoss: a loss was not finite, and ``stop_on_nan`` is set.
    """
    state = run.state
    run.saved_s = time.monotonic()
    report_total(run)
    run.hooks.call("before_training", state)
    loader: DataLoader[Any] | None = None
    loader_batch_size = 0
    while state.step < run.total_steps:
        run.model.train()
        if (
            loader is None
            or isinstance(state.sampler, StreamSampler)
            or not run.config.persistent_workers
            or loader_batch_size != run.strategy.plan.batch_size
        ):
            loader_batch_size = run.strategy.plan.batch_size
            loader = load(run, run.train_dataset, state.sampler, persistent=run.config.persistent_workers)
        start_epoch(loader, state.sampler)
        run.hooks.call("before_epoch", state)
        if not train_epoch(run, loader):
            run.hooks.call("after_training", state)
            return False
        run.balance.after_epoch(state)
    save(run)
    run.loss_watch.finish()
    run.hooks.call("after_training", state)
    return True


def report_total(run: Run) -> None:
    if not isinf(run.total_steps):
        run.reporter.total_steps(int(run.total_steps))


def train_epoch(run: Run, loader: DataLoader[Any]) -> bool:
    """Train the rest of an epoch; return False if a stop request ended the training."""
    state, in_step = run.state, run.strategy.plan.samples_per_step
    batches = run.stream(loader)
    epoch_ended = False
    while not epoch_ended and state.step < run.total_steps:
        start_s = time.perf_counter()
        samples = min(state.sampler.left, in_step)
        for hook in run.hooks.before_step:
            hook(state)
        if run.probe.is_due(run.steps_here):
            loss, exchange_share = run.probe.measure(partial(train_step, run, batches, samples))
            run.reporter.report(state.step + 1, comm_percent=round(100 * exchange_share, 2))
        else:
            loss = train_step(run, batches, samples)
        state.step += 1
        run.steps_here += 1
        if run.steps_here == 1 and not run.strategy.gathers:  # the optimizer has its state from here on
            run.checkpointer.allocate(state.state_dict([capture_rng()], run.hooks.state_dict()))
        epoch_ended = state.sampler.advance(samples)
        if run.reread:
            run.reread = False
            batches = run.stream(load(run, run.train_dataset, state.sampler))
        reported_loss = run.loss_watch.look(state.step, loss)
        took_s = time.perf_counter() - start_s
        if run.policy is not None:
            run.policy.note_step(took_s, writing=run.checkpointer.is_writing)
        run.reporter.report(
            state.step,
            loss=reported_loss,
            lr=state.optimizer.param_groups[0]["lr"],
            samples_per_s=samples / took_s,
            **run.objective.take_step_values(),
        )
        for after_step in run.hooks.after_step:
            after_step(state, {"loss": loss})
        if epoch_ended:
            finish_epoch(run)
        if end_step(run):
            return False
    return True


def finish_epoch(run: Run) -> None:
    """Validate, then call the callbacks; if one of them returns True, this step is the last."""
    state = run.state
    if isinf(run.total_steps):  # an epoch of the stream has ended, so its length is known
        run.total_steps = count_steps(run.config, run.strategy.plan, state.sampler, state.step)
        report_total(run)
    values: Mapping[str, float] = {} if run.val_dataset is None else validate(run, run.val_dataset)
    of_epoch = run.objective.take_epoch_values(run.strategy.ranks.gather)
    state.metrics |= of_epoch
    if values or of_epoch:
        run.reporter.report(state.step, **values, **of_epoch)
    if run.hooks.call("after_epoch", state, values.get("val_loss")):
        run.total_steps = state.step


def validate(run: Run, dataset: Any) -> dict[str, float]:
    """Return ``val_loss`` and the other metrics of a running training's model; waits for the result."""
    task = Task(
        run.strategy,
        run.objective,
        run.around_forward,
        partial(load, run),
        run.metrics,
        run.reporter.heartbeat,
    )
    # Not the DDP wrapper, which would make the ranks wait for each other.
    model = run.state.model
    model.eval()
    run.hooks.call("before_validation", run.state)
    try:
        values = measure(task, model, dataset)
        named = {name if name.startswith("val_") else f"val_{name}": value for name, value in values.items()}
        named |= run.objective.take_validation_values(run.strategy.ranks.gather)
    finally:
        model.train()
    run.state.metrics |= named
    run.hooks.call("after_validation", run.state, named)
    return named


def end_step(run: Run) -> bool:
    """Save if the step, the clock or a signal asks for it; return True if the run is to stop.

    All ranks agree on what to do.

    Raises:
        BadLoss: on all ranks, once one of them saw a loss that is not finite and ``stop_on_nan`` is set.
    """
    config, state, request = run.config, run.state, run.stop_request
    by_clock = save_is_due(run)
    agreed = run.strategy.ranks.agree(
        save=request.save or (by_clock and run.strategy.ranks.rank == 0),
        stop=request.stop,
        bad_loss=run.loss_watch.stops,
        careful=run.scarcity.look(),
        unused=bool(run.strategy.unused) and not run.strategy.expects_unused,
        busy_s=run.balance.clock.take(),
    )
    by_step = config.checkpoint_every_steps is not None and state.step % config.checkpoint_every_steps == 0
    if agreed is not NO_REQUESTS:
        run.balance.note(state.step, agreed.busy_s)
        run.scarcity.take(agreed.careful)
        run.strategy.expects_unused |= agreed.unused
        if agreed.bad_loss:
            run.loss_watch.end(run.strategy.ranks)
    if agreed.save or agreed.stop or by_step:
        save(run)
    return agreed.stop
