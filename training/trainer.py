"""A model and a dataset in, a trained model out: the door for those who bring no loop of their own."""

import os
from collections.abc import Callable
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from training import loop
from training.checkpoint import Checkpoint, Checkpointer
from training.config import ConfigError, TrainConfig
from training.data import ResumableSampler, SizedDataset, measure_length, mix_seeds
from training.fault import StopRequest
from training.report import Reporter, default_reporter
from training.state import LossFn, TrainState, seed_rng
from training.strategies.single import Single

EXIT_STOPPED = 143  # what a shell shows for a process ended by SIGTERM


class Stopped(SystemExit):
    """SIGTERM ended the training after a save; left alone, it ends the process with status 143."""

    def __init__(self, step: int) -> None:
        super().__init__(EXIT_STOPPED)
        self.step = step


class Trainer:
    """Trains on the devices that torchrun's environment gives, and resumes by itself.

    ``Trainer(TrainConfig(batch_size=64)).fit(model, train_dataset)`` is a whole program; the same
    one runs alone and under ``torchrun``.
    """

    def __init__(self, config: TrainConfig | None = None, *, reporter: Reporter | None = None) -> None:
        self.config = config or TrainConfig()
        self.reporter = reporter or default_reporter()

    def fit(
        self,
        model: nn.Module,
        train_dataset: SizedDataset,
        val_dataset: SizedDataset | None = None,
        *,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | Callable[[nn.Module], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    ) -> TrainState:
        """Train ``model`` in place; samples are pairs of inputs and targets.

        ``loss_fn(outputs, targets)`` must be the mean over the samples; without it, cross-entropy
        where targets are whole numbers, else the mean squared error.  ``optimizer`` and ``scheduler``
        may be functions of the model and the optimizer; the scheduler moves once a step.

        Returns what was reached.

        Raises:
            ConfigError, DataError: before anything is trained.
            Stopped: SIGTERM came; the state is saved.
        """
        length = measure_length(train_dataset)
        strategy = make_strategy(self.config)
        wishes = StopRequest()
        wishes.listen()
        try:
            seed_rng(mix_seeds(self.config.seed, strategy.rank))
            model.to(strategy.device)
            state = self._make_state(model, length, strategy, optimizer, scheduler)
            checkpointer = self._make_checkpointer(strategy)
            if found := self._find_checkpoint(checkpointer):
                state.load_state_dict(found.state)
            del found  # the loaded copy would hold its memory to the end
            run = loop.Run(
                config=self.config,
                strategy=strategy,
                model=strategy.prepare(model),
                loss_fn=loss_fn or default_loss,
                state=state,
                train_dataset=train_dataset,
                val_dataset=val_dataset,
                checkpointer=checkpointer,
                reporter=self.reporter,
                wishes=wishes,
                total_steps=count_steps(self.config, state),
            )
            finished = loop.train(run)
            checkpointer.close()
            strategy.close()  # not after an error: it would wait for ranks that may be gone
        finally:
            wishes.leave()
            self.reporter.flush()
        if not finished:
            raise Stopped(state.step)
        return state

    def _make_state(
        self,
        model: nn.Module,
        length: int,
        strategy: loop.Strategy,
        optimizer: Optimizer | Callable[[nn.Module], Optimizer] | None,
        scheduler: Callable[[Optimizer], LRScheduler] | None,
    ) -> TrainState:
        config = self.config
        if optimizer is None:
            optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        elif not isinstance(optimizer, Optimizer):
            optimizer = optimizer(model)
        sampler = ResumableSampler(
            length,
            seed=config.seed,
            rank=strategy.rank,
            world_size=strategy.world_size,
            shuffle=config.shuffle,
        )
        return TrainState(model, optimizer, scheduler(optimizer) if scheduler else None, sampler)

    def _make_checkpointer(self, strategy: loop.Strategy) -> Checkpointer:
        name = type(strategy).__name__.lower()
        return Checkpointer(
            self.config.checkpoint_dir, keep_last=self.config.keep_last, strategy=name, reporter=self.reporter
        )

    def _find_checkpoint(self, checkpointer: Checkpointer) -> Checkpoint | None:
        if not self.config.resumes:
            return None
        if path := self.config.resume_path:
            return checkpointer.load(path)
        return checkpointer.load_latest()


def make_strategy(config: TrainConfig) -> loop.Strategy:
    """The strategy on this rank's device; several ranks connect here.

    Raises:
        ConfigError: the strategy does not fit the ranks, or there are fewer GPUs than ranks.
    """
    chosen = config.choose_strategy(int(os.environ.get("WORLD_SIZE", "1")))
    device = choose_device(int(os.environ.get("LOCAL_RANK", "0")))
    if chosen == "single":
        return Single(device)
    if "RANK" not in os.environ:
        raise ConfigError(
            "strategy is 'ddp', but torchrun did not start this process; use torchrun, or 'auto'."
        )
    from training.strategies.ddp import Ddp  # costs a second, which a single rank need not pay

    return Ddp(device)


def choose_device(local_rank: int) -> torch.device:
    """This rank's GPU where there is one, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"Rank {local_rank} of this server has no GPU: {count} are visible; start {count} ranks."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def count_steps(config: TrainConfig, state: TrainState) -> int:
    """Steps at the end of the training, those before a resume included.

    A resumed run may have another world size, so what is left is counted from where it stands.
    """
    in_step = loop.samples_in_step(config, state.sampler.world_size)
    epochs_after = config.epochs - state.sampler.epoch - 1
    left = ceil(state.sampler.left / in_step) + epochs_after * ceil(state.sampler.length / in_step)
    by_epochs = state.step + (left if epochs_after >= 0 else 0)
    return by_epochs if config.max_steps is None else min(by_epochs, config.max_steps)


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return functional.mse_loss(outputs, targets)
    return functional.cross_entropy(outputs, targets)
