"""What a training does besides training, at the end of its epochs."""

import math
from collections.abc import Callable

from training.state import TrainState


class Callback:
    """Subclass it; every rank calls it with the same numbers, so ranks decide alike."""

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        """An epoch has ended; ``val_loss`` is None without a validation dataset.  True ends the training."""
        return False


class EarlyStopping(Callback):
    """Ends the training when the validation loss has not become better for ``patience`` epochs.

    Better means lower by more than ``least_change``.  A resumed run counts anew.
    """

    def __init__(self, patience: int = 3, *, least_change: float = 0.0) -> None:
        if patience < 1:
            raise ValueError(f"patience is {patience}; it must be at least 1 epoch.")
        self.patience, self.least_change = patience, least_change
        self.best, self.best_step = math.inf, 0
        self._worse = 0

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        if val_loss is None:
            raise ValueError("EarlyStopping needs a validation dataset; give fit() one, or leave it out.")
        if val_loss < self.best - self.least_change:
            self.best, self.best_step, self._worse = val_loss, state.step, 0
        else:
            self._worse += 1
        return self._worse >= self.patience


class EveryEpoch(Callback):
    """Calls a function with the state and the validation loss; what it returns decides as in ``after_epoch``."""

    def __init__(self, function: Callable[[TrainState, float | None], bool | None]) -> None:
        self._function = function

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        return bool(self._function(state, val_loss))
