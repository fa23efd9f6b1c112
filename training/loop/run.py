"""The parts of a running training, and how many steps it has."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from training.callbacks import Hooks
from training.checkpoint import Checkpointer
from training.checkpoint.policy import SavePolicy, StopRequest
from training.config import TrainConfig
from training.config.plan import Plan
from training.data import AnySampler, Collate, StreamReader, StreamSampler, make_loader, move_to
from training.data.prefetch import Augment, on_device
from training.memory.scarcity import Scarcity
from training.model.batches import Objective
from training.model.metrics import Metrics
from training.report import Reporter
from training.state import TrainState
from training.strategies.interface import Strategy
from training.watch.balance import Balance
from training.watch.communication import CommunicationProbe
from training.watch.losses import LossWatch


@dataclass(slots=True)
class Run:
    """A running training: its settings and its parts."""

    config: TrainConfig
    strategy: Strategy
    model: nn.Module  # as returned by ``Strategy.prepare``
    around_forward: Callable[[], AbstractContextManager[Any]]
    objective: Objective
    state: TrainState
    train_dataset: Any
    val_dataset: Any | None
    checkpointer: Checkpointer
    reporter: Reporter
    stop_request: StopRequest
    loss_watch: LossWatch
    balance: Balance
    probe: CommunicationProbe
    scarcity: Scarcity
    total_steps: float  # infinite while the end of a stream is unknown
    hooks: Hooks = field(default_factory=Hooks)
    metrics: Metrics | None = None
    collate_fn: Collate | None = None
    augment: Augment | None = None  # of each training batch, on the device
    policy: SavePolicy | None = None  # if the measured cost decides how often to save
    saved_s: float = 0.0  # monotonic time of the newest save
    steps_here: int = 0  # steps since this process started
    reread: bool = False  # whether a retried step left the loader's batches behind
    moves: bool = field(init=False)  # whether batches must be copied to the device
    plain: bool = field(init=False)  # whether the forward pass needs no context and no scaling

    def stream(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over the loader's training batches on the device."""
        batches = self._read(loader)
        # Not while a batch is prefetched: random numbers drawn ahead of a checkpoint would be drawn again.
        return batches if self.augment is None else map(self.augment, batches)

    def _read(self, loader: DataLoader[Any]) -> Iterator[Any]:
        sampler, device = self.state.sampler, self.strategy.device
        if isinstance(sampler, StreamSampler):
            reader = StreamReader(loader, sampler, self.strategy.plan.samples_per_step)
            return (move_to(batch, device) for batch in reader) if self.moves else iter(reader)
        return on_device(loader, device) if self.moves else iter(loader)

    def __post_init__(self) -> None:
        self.moves = self.strategy.device.type != "cpu"
        self.plain = self.around_forward is nullcontext and not self.state.scaler.used


def load(run: Run, dataset: Any, sampler: AnySampler, *, persistent: bool = False) -> DataLoader[Any]:
    config = run.config
    return make_loader(
        dataset,
        sampler,
        run.strategy.plan.batch_size,
        config.num_workers,
        collate_fn=run.collate_fn,
        pin_memory=config.pin_memory,
        prefetch_factor=config.prefetch_factor,
        persistent_workers=persistent,
    )


def count_steps(config: TrainConfig, plan: Plan, sampler: AnySampler, step: int) -> float:
    """Count the steps at the end of the training, including those before a resume; infinite while unknown.

    A resumed run may have another world size, so the remaining steps are counted from its position.
    """
    in_step = plan.samples_per_step
    epochs_after = config.epochs - sampler.epoch - 1
    if sampler.length is None:
        remaining = inf
    else:
        left = max(sampler.length - sampler.position, 0)
        remaining = ceil(left / in_step) + epochs_after * ceil(sampler.length / in_step)
    by_epochs = step + (remaining if epochs_after >= 0 else 0)
    return by_epochs if config.max_steps is None else min(by_epochs, config.max_steps)
