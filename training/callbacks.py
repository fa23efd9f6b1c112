"""Callbacks at the end of each epoch: early stopping, or a function of your own."""

import math
from collections.abc import Callable

from training.state import TrainState


class Callback:
    """Base class. Every rank calls its callbacks with the same numbers, so all ranks decide alike."""

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        """Return True to end the training; ``val_loss`` is None without a validation dataset."""
        return False


class EarlyStopping(Callback):
    """End the training once the validation loss has not improved for ``patience`` epochs.

    An improvement is a decrease by more than ``least_change``.  The count restarts when a run resumes.
    """

    def __init__(self, patience: int = 3, *, least_change: float = 0.0) -> None:
        if patience < 1:
            raise ValueError(f"patience is {patience}; it must be at least 1 epoch.")
        self.patience, self.least_change = patience, least_change
        self.best, self.best_step = math.inf, 0
        self._worse = 0

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        if val_loss is None:
            raise ValueError(
                "EarlyStopping needs a validation dataset; give fit() one, or remove EarlyStopping."
            )
        if val_loss < self.best - self.least_change:
            self.best, self.best_step, self._worse = val_loss, state.step, 0
        else:
            self._worse += 1
        return self._worse >= self.patience


class EveryEpoch(Callback):
    """Call ``function(state, val_loss)`` after each epoch; its return value counts as that of ``after_epoch``."""

    def __init__(self, function: Callable[[TrainState, float | None], bool | None]) -> None:
        self._function = function

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        return bool(self._function(state, val_loss))
