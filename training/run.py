"""What a training holds on to while it runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from training.balance import Balance
from training.callbacks import Callback
from training.checkpoint import Checkpointer
from training.checkpoint.policy import SavePolicy
from training.config import TrainConfig
from training.data import ResumableSampler, SizedDataset, make_loader, on_device
from training.fault import StopRequest
from training.losses import LossWatch
from training.memory.scarcity import Scarcity
from training.probe import CommunicationProbe
from training.report import Reporter
from training.state import LossFn, TrainState
from training.strategies.interface import Strategy


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
