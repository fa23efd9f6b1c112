"""When a training saves, and what it does while nothing can be saved."""

import time
from typing import Any

from training import events
from training.run import Run
from training.state import capture_rng

TRY_AGAIN_S = 10.0


def save_is_due(run: Run) -> bool:
    """By the clock, which ranks need not read alike: they agree on what this says."""
    if run.policy is not None:
        return run.policy.is_due()
    every_s = run.config.checkpoint_every_s
    return every_s is not None and time.monotonic() - run.saved_s >= every_s


def save(run: Run) -> None:
    """Save this step; all ranks call it at the same step, each gives its random generators.

    After ``pause_after_failed_saves`` failures in a row the training waits here until a save succeeds,
    or until it is told to stop: what it would go on to compute could not be kept.
    """
    run.wishes.save = False
    run.saved_s = time.monotonic()
    told = run.strategy.ranks.gather((capture_rng(), run.checkpointer.failures, run.wishes.stop))
    state = run.state.state_dict([rng for rng, _, _ in told])
    limit, stops = run.config.pause_after_failed_saves, any(stop for _, _, stop in told)
    if limit and not stops and max(failures for _, failures, _ in told) >= limit:
        _save_patiently(run, state)
    else:
        run.checkpointer.save(state, run.state.step)
    if run.policy is not None:
        run.policy.note_save(run.checkpointer.stall_s)


def _save_patiently(run: Run, state: dict[str, Any]) -> None:
    step, checkpointer, began_s = run.state.step, run.checkpointer, time.monotonic()
    run.reporter.event(
        events.PAUSED_EVENT, step=step, failures=checkpointer.failures, reason=checkpointer.failure
    )
    while True:
        checkpointer.save(state, step)
        checkpointer.wait()
        told = run.strategy.ranks.gather((checkpointer.failures, run.wishes.stop))
        saved = not any(failures for failures, _ in told)
        if saved or any(stop for _, stop in told):
            break
        _wait(run)
    if saved:
        paused_s = round(time.monotonic() - began_s, 1)
        run.reporter.event(events.WENT_ON_EVENT, step=step, paused_s=paused_s)


def _wait(run: Run) -> None:
    """Ten seconds, less where this rank is told to stop."""
    end_s = time.monotonic() + TRY_AGAIN_S
    while time.monotonic() < end_s and not run.wishes.stop:
        run.reporter.heartbeat()  # a pause is no hang
        time.sleep(min(0.5, TRY_AGAIN_S))
