"""Saving a running training: when a save is due, and the pause while no save succeeds."""

import time

from training import events
from training.loop.run import Run
from training.rng import capture_rng
from training.state import SavedState
from training.watch.losses import raise_if_bad

RETRY_EVERY_S = 10.0


def save_is_due(run: Run) -> bool:
    """Return whether a save is due by the clock; clocks differ, so ranks agree on the answer afterwards."""
    if run.policy is not None:
        return run.policy.is_due()
    every_s = run.config.checkpoint_every_s
    return every_s is not None and time.monotonic() - run.saved_s >= every_s


def save(run: Run) -> None:
    """Save this step with the random generators of every rank; all ranks must call this at the same step.

    After ``pause_after_failed_saves`` consecutive failures the training waits here until a save succeeds
    or a stop request arrives: further progress could not be saved.

    Raises:
        BadLoss: on all ranks, if one of them has a loss that is not finite and ``stop_on_nan`` is set; nothing is saved.
    """
    run.stop_request.save = False
    run.saved_s = time.monotonic()
    failures, stop = run.checkpointer.failures, run.stop_request.stop
    of_ranks = run.strategy.ranks.gather((capture_rng(), failures, stop, run.loss_watch.settle()))
    rngs, failures_of_ranks, stops_of_ranks, bad_losses = zip(*of_ranks, strict=True)
    raise_if_bad(
        bad_losses
    )  # ranks agree on losses late: without this, a save could hold what a bad loss made
    run.hooks.call("before_save", run.state)
    state = run.state.state_dict([*rngs], run.hooks.state_dict())
    limit = run.config.pause_after_failed_saves
    if limit and not any(stops_of_ranks) and max(failures_of_ranks) >= limit:
        _save_patiently(run, state)
    else:
        run.checkpointer.save(state, run.state.step)
    if run.policy is not None:
        run.policy.note_save(run.checkpointer.stall_s)
    run.hooks.call("after_save", run.state)


def _save_patiently(run: Run, state: SavedState) -> None:
    step, checkpointer, began_s = run.state.step, run.checkpointer, time.monotonic()
    run.reporter.event(
        events.PAUSED_EVENT, step=step, failures=checkpointer.failures, reason=checkpointer.failure
    )
    while True:
        checkpointer.save(state, step)
        checkpointer.wait()
        of_ranks = run.strategy.ranks.gather((checkpointer.failures, run.stop_request.stop))
        saved = not any(failures for failures, _ in of_ranks)
        if saved or any(stop for _, stop in of_ranks):
            break
        _wait(run)
    if saved:
        paused_s = round(time.monotonic() - began_s, 1)
        run.reporter.event(events.WENT_ON_EVENT, step=step, paused_s=paused_s)


def _wait(run: Run) -> None:
    """Wait until the next try, or until a stop request arrives."""
    end_s = time.monotonic() + RETRY_EVERY_S
    while time.monotonic() < end_s and not run.stop_request.stop:
        run.reporter.heartbeat()  # so that the pause does not look like a hang
        time.sleep(min(0.5, RETRY_EVERY_S))
