"""Callbacks around a training and its epochs, steps, validations and saves; early stopping; the best weights."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.optim.optimizer import StateDict

from training.config import ConfigError
from training.config.extensions import ExtensionError, load
from training.state import TrainState

Values = Mapping[str, float | Tensor]
Mode = Literal["min", "max"]


class Callback:
    """Base class. Every rank calls its callbacks with the same numbers, so all ranks decide alike.

    ``state.metrics`` has the newest value of every metric.  What ``state_dict`` returns is kept in checkpoints.
    """

    def before_training(self, state: TrainState) -> None:
        """Called once the newest checkpoint is loaded."""

    def after_training(self, state: TrainState) -> None:
        """Called after the last save, also if a stop request ended the training."""

    def before_epoch(self, state: TrainState) -> None:
        """Called before the first step of an epoch, or of the rest of one after a resume."""

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool | None:
        """Return True to end the training; ``val_loss`` is None without a validation dataset."""
        return False

    def before_step(self, state: TrainState) -> None:
        """Called before the passes of a step; ``state.step`` counts the finished ones."""

    def before_update(self, state: TrainState) -> None:
        """Called when the gradients of a step are complete and clipped, before the optimizer uses them."""

    def after_step(self, state: TrainState, metrics: Values) -> None:
        """Called after each update; ``loss`` may be a tensor on the device, and reading it waits for the GPU."""

    def before_validation(self, state: TrainState) -> None:
        """Called before the model sees the validation dataset."""

    def after_validation(self, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Called with ``val_loss`` and the other metrics, over all ranks."""

    def before_save(self, state: TrainState) -> None:
        """Called before the state of a checkpoint is copied."""

    def after_save(self, state: TrainState) -> None:
        """Called once the copy is taken; it is written in the background."""

    def on_exception(self, state: TrainState, error: BaseException) -> None:
        """Called before ``fit`` raises ``error``."""

    def state_dict(self) -> StateDict:
        """Return what to keep in checkpoints: numbers, texts, tensors, and lists and dicts of them."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Take what ``state_dict`` returned when the checkpoint was saved."""


class Hooks:
    """The callbacks of a training; the hooks of each step are found once, so that an empty hook costs nothing."""

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        self._callbacks = callbacks
        self.before_step = self._overriding("before_step")
        self.before_update = self._overriding("before_update")
        self.after_step = self._overriding("after_step")

    def call(self, name: str, *arguments: Any) -> bool:
        """Call every callback's hook; return whether one of them returned True."""
        answers = [method(*arguments) for method in self._overriding(name)]  # all are called
        return True in answers

    def state_dict(self) -> StateDict:
        """Return the callbacks' states by their class and number."""
        return {name: state for name, each in self._named() if (state := each.state_dict())}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Load the states of the callbacks that the checkpoint has too."""
        for name, each in self._named():
            if name in states:
                each.load_state_dict(states[name])

    def _named(self) -> list[tuple[str, Any]]:
        counts: dict[str, int] = {}
        named = []
        for each in self._callbacks:
            kind = type(each).__name__
            counts[kind] = counts.get(kind, 0) + 1
            if hasattr(each, "state_dict"):
                named.append((f"{kind}-{counts[kind]}", each))
        return named

    def _overriding(self, name: str) -> tuple[Callable[..., Any], ...]:
        empty = getattr(Callback, name)
        return tuple(
            getattr(each, name) for each in self._callbacks if getattr(type(each), name, empty) is not empty
        )


def make_registered(names: Sequence[str]) -> list[Any]:
    """Make the callbacks that other packages register under these names.

    Raises:
        ConfigError: one cannot be imported.
    """
    try:
        return [load("callbacks", name)() for name in names]
    except ExtensionError as error:
        raise ConfigError(f"{error}") from error


class Monitored(Callback):
    """A callback that compares the values of a metric."""

    def __init__(self, monitor: str, mode: Mode) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode is {mode!r}; it can be 'min' or 'max'.")
        self.monitor, self.mode = monitor, mode

    def sign(self, value: float) -> float:
        """Return the value so that less is better; infinite if it is not a number."""
        if math.isnan(value):
            return math.inf
        return value if self.mode == "min" else -value

    def read(self, state: TrainState) -> float:
        """Return the newest value.

        Raises:
            ConfigError: no metric has the name.
        """
        value = state.metrics.get(self.monitor)
        if value is None:
            there = ", ".join(sorted(state.metrics)) or "none"
            raise ConfigError(
                f"{type(self).__name__} watches {self.monitor!r}, and there is no such metric; there are: {there}. "
                "val_ metrics need a validation dataset."
            )
        return value


class EarlyStopping(Monitored):
    """End the training once a metric has not improved for ``patience`` epochs, also counted over resumes.

    An improvement is a change for the better by more than ``least_change``.
    """

    def __init__(
        self,
        patience: int = 3,
        *,
        least_change: float = 0.0,
        monitor: str = "val_loss",
        mode: Mode = "min",
    ) -> None:
        super().__init__(monitor, mode)
        if patience < 1:
            raise ValueError(f"patience is {patience}; it must be at least 1 epoch.")
        self.patience, self.least_change = patience, least_change
        self.best, self.best_step = math.inf if mode == "min" else -math.inf, 0
        self._worse = 0

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        if val_loss is None and self.monitor == "val_loss":
            raise ValueError(
                "EarlyStopping needs a validation dataset; give fit() one, or remove EarlyStopping."
            )
        value = val_loss if self.monitor == "val_loss" and val_loss is not None else self.read(state)
        if self.sign(value) < self.sign(self.best) - self.least_change:
            self.best, self.best_step, self._worse = value, state.step, 0
        else:
            self._worse += 1
        return self._worse >= self.patience

    def state_dict(self) -> StateDict:
        return {"best": self.best, "best_step": self.best_step, "worse": self._worse}

    def load_state_dict(self, state: StateDict) -> None:
        self.best, self.best_step, self._worse = state["best"], state["best_step"], state["worse"]


class BestWeights(Monitored):
    """Keep the model's weights of the ``count`` best validations, each as a file that ``torch.load`` reads.

    The files are in ``folder`` (``best`` in the job's output folder, or here), whole for every strategy;
    ``best.json`` there lists them, the best first.  A resumed training continues the list of its checkpoint.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        mode: Mode = "min",
        count: int = 1,
        folder: Path | str | None = None,
    ) -> None:
        super().__init__(monitor, mode)
        if count < 1:
            raise ValueError(f"count is {count}; it must be at least 1 file.")
        self.count = count
        self.folder = Path(folder) if folder else Path(os.environ.get("BERTH_OUTPUT_DIR", "")) / "best"
        self.kept: list[tuple[float, int]] = []  # value and step, the best first

    @property
    def best(self) -> Path | None:
        """The file of the best weights."""
        return self._path(self.kept[0][1]) if self.kept else None

    def after_validation(self, state: TrainState, metrics: Mapping[str, float]) -> None:
        value = self.read(state)
        others = [entry for entry in self.kept if entry[1] != state.step]
        ordered = sorted([*others, (value, state.step)], key=lambda entry: (self.sign(entry[0]), entry[1]))
        kept = ordered[: self.count]
        if (value, state.step) not in kept or math.isnan(value):
            return
        if state.strategy.ranks.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
        state.export(self._path(state.step))
        self.kept = kept
        if state.strategy.ranks.rank == 0:
            self._write_list()
            for _, step in ordered[self.count :]:
                self._path(step).unlink(missing_ok=True)

    def state_dict(self) -> StateDict:
        return {"kept": [[value, step] for value, step in self.kept]}

    def load_state_dict(self, state: StateDict) -> None:
        self.kept = [(float(value), int(step)) for value, step in state["kept"]]

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}.pt"

    def _write_list(self) -> None:
        files = [{"file": f"step-{step}.pt", "step": step, "value": value} for value, step in self.kept]
        text = json.dumps({"monitor": self.monitor, "mode": self.mode, "files": files}, indent=2)
        part = self.folder / "best.json.part"
        part.write_text(text)
        part.replace(self.folder / "best.json")


class EveryEpoch(Callback):
    """Call ``function(state, val_loss)`` after each epoch; its return value counts as that of ``after_epoch``."""

    def __init__(self, function: Callable[[TrainState, float | None], bool | None]) -> None:
        self._function = function

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool:
        return bool(self._function(state, val_loss))
