"""A model and a dataset in, a trained model out: the door for those who bring no loop of their own."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from training import inference
from training.balance import Balance
from training.callbacks import Callback
from training.checkpoint import Checkpoint, Checkpointer
from training.checkpoint.policy import SavePolicy
from training.config import TrainConfig
from training.data import ResumableSampler, SizedDataset, measure_length, mix_seeds, require_batch
from training.fault import StopRequest
from training.hang import watch_hangs
from training.loop import train
from training.losses import LossWatch, default_loss
from training.memory.meters import pretended_memory
from training.memory.scarcity import Scarcity
from training.plan.choose import Training, choose_plan, like, make_table
from training.plan.fixed import DEFAULT_BATCH_SIZE
from training.plan.table import PlanTable
from training.plan.types import Plan
from training.precision import Scaler
from training.preparation import (
    MakeOptimizer,
    count_steps,
    draw_example,
    make_deterministic,
    make_optimizer,
)
from training.probe import CommunicationProbe
from training.rate import add_warmup, scale_rate, warmup_steps
from training.report import Reporter, default_reporter
from training.run import Run
from training.state import LossFn, TrainState, seed_rng
from training.strategies.alike import check_ranks_agree
from training.strategies.choose import (
    choose_device,
    forward_context,
    make_strategy,
    prepare_model,
    prepare_optimizer,
)
from training.strategies.interface import Strategy

EXIT_STOPPED = 143  # what a shell shows for a process ended by SIGTERM
MakeScheduler = Callable[[Optimizer], LRScheduler]


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

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        plan: Plan | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        """``plan`` is carried out instead of what ``config`` says of strategy, batch and memory."""
        self.config = config or TrainConfig()
        self.given_plan = plan
        self.reporter = reporter or default_reporter()

    def fit(
        self,
        model: nn.Module,
        train_dataset: SizedDataset,
        val_dataset: SizedDataset | None = None,
        *,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
        scheduler: MakeScheduler | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> TrainState:
        """Train ``model`` in place; samples are pairs of inputs and targets.

        ``loss_fn(outputs, targets)`` must be the mean over the samples; without it, cross-entropy
        where targets are whole numbers, else the mean squared error.  ``optimizer`` and ``scheduler``
        may be functions of the model and the optimizer; the scheduler moves once a step.  Strategies
        that split the model need the function, because they replace the parameters.

        Returns what was reached.  A model that was split stays so: see ``TrainState.full_model_state``.

        Raises:
            ConfigError, DataError: before anything is trained.
            BadLoss: a loss was not finite, and ``stop_on_nan`` is set.
            Stopped: SIGTERM came; the state is saved.
        """
        length = measure_length(train_dataset)
        device = choose_device()
        asked = self._training(model, train_dataset, device, loss_fn, optimizer)
        plan = self.given_plan or choose_plan(asked, self.reporter)
        require_batch(length, plan.batch_size, plan.dp)
        if self.config.deterministic:
            make_deterministic()
        wishes = StopRequest()
        wishes.listen()
        try:
            strategy = make_strategy(plan, device, self.config, draw_example(train_dataset, plan))
            check_ranks_agree(strategy, self.config, model, length)
            seed_rng(mix_seeds(self.config.seed, strategy.data_rank))
            prepared = prepare_model(model, strategy, compiled=self.config.compile)
            state = self._make_state(model, length, strategy, optimizer, scheduler)
            checkpointer = self._make_checkpointer(strategy)
            if found := self._find_checkpoint(checkpointer):
                state.load_state_dict(found.state)
            del found  # the loaded copy would hold its memory to the end
            run = self._make_run(prepared, state, train_dataset, val_dataset, loss_fn, checkpointer, wishes)
            run.callbacks = callbacks
            with watch_hangs(self.reporter), pretended_memory([*model.parameters(), *model.buffers()]):
                finished = train(run)
            checkpointer.close()
            strategy.close()  # not after an error: it would wait for ranks that may be gone
        finally:
            wishes.leave()
            self.reporter.flush()
        if not finished:
            raise Stopped(state.step)
        return state

    def resume(
        self, model: nn.Module, train_dataset: SizedDataset, *, checkpoint: str | None = None, **wishes: Any
    ) -> TrainState:
        """As ``fit``, from ``checkpoint`` or else the newest that is whole, if there is one.

        ``wishes`` are the other arguments of ``fit``.
        """
        config = replace(self.config, resume=checkpoint or True)
        return Trainer(config, plan=self.given_plan, reporter=self.reporter).fit(
            model, train_dataset, **wishes
        )

    def evaluate(self, model: nn.Module, dataset: SizedDataset, *, loss_fn: LossFn | None = None) -> float:
        """The mean loss over ``dataset``, each sample once over all ranks; ``model`` is whole on each."""
        strategy = inference.connect(self.config, self._plan_of_inference())
        workers = self.config.num_workers
        return inference.evaluate(model, dataset, strategy, loss_fn or default_loss, workers)

    def predict(self, model: nn.Module, dataset: SizedDataset) -> Tensor:
        """The outputs for all samples, in the dataset's order; of pairs the inputs are taken."""
        strategy = inference.connect(self.config, self._plan_of_inference())
        return inference.predict(model, dataset, strategy, self.config.num_workers)

    def export(self, state: TrainState, path: str | Path) -> None:
        """Write the whole model's ``state_dict``, whatever the strategy; all ranks call it."""
        inference.export(state, Path(path))

    def _plan_of_inference(self) -> Plan:
        config, batch_size = self.config, self.config.batch_size
        return Plan(
            batch_size=DEFAULT_BATCH_SIZE if batch_size == "auto" else batch_size,
            precision="bf16" if config.precision == "bf16" else "fp32",
        )

    def plan(
        self,
        model: nn.Module,
        train_dataset: SizedDataset,
        *,
        devices: int | None = None,
        memory_bytes: int | None = None,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
    ) -> PlanTable:
        """The candidates that the config leaves open, with predicted memory, step time, and why not.

        For ``devices`` like this one (None: as many as there are ranks) with ``memory_bytes`` of
        each (None: what is free).  Print it; nothing is trained.

        Raises:
            CannotEstimate: the model cannot be followed without data.
            DoesNotFit: no plan keeps within memory; its ``table`` shows what was tried.
        """
        asked = self._training(model, train_dataset, choose_device(), loss_fn, optimizer)
        ranks = devices or int(os.environ.get("WORLD_SIZE", "1"))
        return make_table(asked, ranks, memory_bytes=memory_bytes)

    def _training(
        self,
        model: nn.Module,
        dataset: SizedDataset,
        device: torch.device,
        loss_fn: LossFn | None,
        optimizer: Optimizer | MakeOptimizer | None,
    ) -> Training:
        """What the planner looks at; an optimizer that is made already stands for its class."""
        made = optimizer if isinstance(optimizer, Optimizer) else None
        make = (lambda each: like(made, each)) if made else cast("MakeOptimizer | None", optimizer)
        return Training(self.config, model, dataset, device, loss_fn or default_loss, make)

    def _make_run(
        self,
        prepared: nn.Module,
        state: TrainState,
        train_dataset: SizedDataset,
        val_dataset: SizedDataset | None,
        loss_fn: LossFn | None,
        checkpointer: Checkpointer,
        wishes: StopRequest,
    ) -> Run:
        strategy, config = state.strategy, self.config
        return Run(
            config=config,
            strategy=strategy,
            model=prepared,
            around_forward=forward_context(strategy.plan, strategy.device),
            loss_fn=loss_fn or default_loss,
            state=state,
            train_dataset=train_dataset,
            val_dataset=val_dataset,
            checkpointer=checkpointer,
            reporter=self.reporter,
            wishes=wishes,
            watch=LossWatch(self.reporter, strategy.device, strategy.ranks.rank, stops=config.stop_on_nan),
            balance=Balance(strategy, self.reporter, divides=config.load_balance),
            # DDP keeps clocks of its own.
            probe=CommunicationProbe(
                active=self.reporter.active
                and strategy.ranks.size > 1
                and strategy.plan.strategy not in ("ddp", "zero1")
            ),
            scarcity=Scarcity(
                strategy.device,
                ranks=strategy.ranks.size,
                repeats=strategy.repeats,
                deterministic=config.deterministic,
            ),
            total_steps=count_steps(config, strategy.plan, state.sampler, state.step),
            policy=SavePolicy() if config.checkpoint_every == "auto" else None,
        )

    def _make_state(
        self,
        model: nn.Module,
        length: int,
        strategy: Strategy,
        optimizer: Optimizer | MakeOptimizer | None,
        scheduler: MakeScheduler | None,
    ) -> TrainState:
        config = self.config
        sampler = ResumableSampler(
            length,
            seed=config.seed,
            rank=strategy.data_rank,
            world_size=strategy.data_ranks,
            shuffle=config.shuffle,
        )
        made = make_optimizer(optimizer, model, config, strategy)
        scale_rate(made, config, strategy.data_ranks)
        ready = prepare_optimizer(made, strategy)
        steps = warmup_steps(config, count_steps(config, strategy.plan, sampler, 0), strategy.data_ranks)
        rate = add_warmup(ready, scheduler(ready) if scheduler else None, steps)
        return TrainState(
            model, ready, rate, sampler, strategy, Scaler(strategy.plan.precision, strategy.device)
        )

    def _make_checkpointer(self, strategy: Strategy) -> Checkpointer:
        return Checkpointer(
            self.config.checkpoint_dir,
            keep_last=self.config.keep_last,
            strategy=strategy.plan.strategy,
            reporter=self.reporter,
        )

    def _find_checkpoint(self, checkpointer: Checkpointer) -> Checkpoint | None:
        if not self.config.resumes:
            return None
        if path := self.config.resume_path:
            return checkpointer.load(path)
        return checkpointer.load_latest(begin_anew=False if self.config.resume is True else None)
