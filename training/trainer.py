"""Trainer: trains a model on a dataset, for programs without a training loop of their own."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from training import evaluation
from training.callbacks import Callback, Hooks, make_registered
from training.checkpoint import Checkpoint, Checkpointer
from training.checkpoint.policy import SavePolicy, StopRequest
from training.config import ConfigError, TrainConfig
from training.config.fixed_plan import DEFAULT_BATCH_SIZE
from training.config.plan import Plan
from training.data import (
    Collate,
    SizedDataset,
    draw_example,
    is_stream,
    make_loader,
    make_sampler,
    measure_length,
    require_batch,
)
from training.data.prefetch import Augment
from training.loop.epochs import train_or_tell
from training.loop.run import Run, count_steps
from training.memory.meters import pretended_memory
from training.memory.scarcity import Scarcity
from training.model.batches import Objective
from training.model.lightning import LightningObjective, is_lightning
from training.model.metrics import Metrics, name_metrics
from training.model.objective import (
    LossFn,
    MakeOptimizer,
    MakeScheduler,
    add_warmup,
    batch_growth,
    make_optimizer,
    make_scheduler,
    scale_rate,
    warmup_steps,
)
from training.plan.choose import choose_plan, make_table
from training.plan.table import PlanTable
from training.plan.training import Training
from training.report import Reporter, default_reporter
from training.rng import make_deterministic, mix_seeds, seed_rng
from training.state import TrainState
from training.strategies.choose import (
    choose_device,
    forward_context,
    make_strategy,
    prepare_model,
    prepare_optimizer,
)
from training.strategies.interface import Strategy
from training.strategies.precision import Scaler, make_autocast
from training.strategies.ranks import close_at_next_training, close_ended_trainings
from training.strategies.replicas import check_ranks_agree
from training.watch.balance import Balance
from training.watch.communication import CommunicationProbe
from training.watch.hang import watch_hangs
from training.watch.losses import LossWatch

EXIT_STOPPED = 143  # what a shell shows for a process ended by SIGTERM


class Stopped(SystemExit):
    """SIGTERM ended the training after a save; uncaught, it ends the process with status 143."""

    def __init__(self, step: int) -> None:
        super().__init__(EXIT_STOPPED)
        self.step = step


class Trainer:
    """Trains on the devices of torchrun's environment, and resumes from the newest checkpoint.

    ``Trainer(TrainConfig(batch_size=64)).fit(model, train_dataset)`` is a whole program, which runs
    alone and under ``torchrun``.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        plan: Plan | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        """Create a trainer; ``plan`` replaces the strategy, batch and memory settings of ``config``."""
        self.config = config or TrainConfig()
        self.given_plan = plan
        self.reporter = reporter or default_reporter()

    def fit(
        self,
        model: nn.Module,
        train_dataset: SizedDataset | Iterable[Any],
        val_dataset: SizedDataset | Iterable[Any] | None = None,
        *,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
        scheduler: LRScheduler | MakeScheduler | None = None,
        callbacks: Sequence[Callback] = (),
        metrics: Metrics | None = None,
        augment: Augment | None = None,
        collate_fn: Collate | None = None,
    ) -> TrainState:
        """Train ``model`` in place; samples are pairs of inputs and targets, or dicts of the model's arguments.

        ``loss_fn(outputs, targets)`` must return the mean over the samples; the default is the loss that the
        model returns for a dict, else cross-entropy for integer targets and the mean squared error for others.
        ``optimizer`` and ``scheduler`` may be functions of the model and the optimizer; the scheduler steps
        once per optimizer update.  Strategies that split the model need a function, because they replace the
        parameters.  Datasets are read by index, or as a stream from its beginning.

        A ``LightningModule`` brings steps, optimizer and hooks of its own.  ``metrics`` are evaluated with the
        validation dataset (see ``MetricSet``), ``augment(batch)`` changes each training batch on its device, and
        ``collate_fn(samples)`` makes batches.

        Returns the final state.  A split model stays split: see ``export`` and ``TrainState.full_model_state``, which
        can gather it until the next ``fit``.

        Raises:
            ConfigError, DataError: a setting or the dataset cannot be used; nothing was trained.
            BadLoss: a loss was not finite, and ``stop_on_nan`` is set.
            Stopped: SIGTERM arrived; the state is saved.
        """
        length = measure_length(train_dataset)
        callbacks = [*callbacks, *make_registered(self.config.callback_names)]
        name_metrics(metrics)
        if is_stream(train_dataset) and self.config.load_balance:
            raise ConfigError("load_balance needs a dataset that is read by index, and this one is a stream.")
        device, objective = choose_device(), Objective.of(loss_fn)
        close_ended_trainings()
        if loss_fn is None and is_lightning(model):
            objective = LightningObjective(model, self.config)
            objective.set_up()
            optimizer = optimizer or objective.make_optimizer
            scheduler = scheduler or objective.take_scheduler
            callbacks = [cast(Callback, objective), *callbacks]
        training = Training.of(self.config, model, train_dataset, device, objective, optimizer, collate_fn)
        plan = self.given_plan or choose_plan(training, self.reporter)
        require_batch(length, plan.batch_size, plan.dp)
        if self.config.deterministic:
            make_deterministic()
        stop_request = StopRequest()
        stop_request.listen()
        try:
            example = draw_example(train_dataset, plan, collate_fn)
            strategy = make_strategy(plan, device, self.config, example)
            check_ranks_agree(strategy, self.config, model, length or 0)
            seed_rng(mix_seeds(self.config.seed, strategy.data_rank))
            prepared = prepare_model(model, strategy, compiled=self.config.compile)
            if isinstance(objective, LightningObjective):
                one_rank = make_sampler(train_dataset, rank=0, world_size=1, shuffle=False)
                objective.expect(plan.strategy, count_steps(self.config, plan, one_rank, 0))
            state = self._make_state(model, train_dataset, strategy, optimizer, scheduler)
            hooks = Hooks(callbacks)
            checkpointer = self._make_checkpointer(strategy)
            if checkpoint := self._find_checkpoint(checkpointer):
                state.load_state_dict(checkpoint.state)
                hooks.load_state_dict(checkpoint.state.get("callbacks", {}))
            del checkpoint  # the loaded copy would keep its memory until the end
            run = self._make_run(
                prepared, state, train_dataset, val_dataset, objective, checkpointer, stop_request
            )
            run.hooks, run.metrics = hooks, metrics
            run.augment, run.collate_fn = augment, collate_fn
            with watch_hangs(self.reporter), pretended_memory([*model.parameters(), *model.buffers()]):
                finished = train_or_tell(run)
            checkpointer.close()
            # Not after an error: closing would wait for ranks that may be gone.
            close_at_next_training(strategy.close)
        finally:
            stop_request.leave()
            self.reporter.flush()
        if not finished:
            raise Stopped(state.step)
        return state

    def resume(
        self,
        model: nn.Module,
        train_dataset: SizedDataset | Iterable[Any],
        *,
        checkpoint: str | None = None,
        **options: Any,
    ) -> TrainState:
        """Run ``fit`` from ``checkpoint``, or else from the newest intact one, if there is one.

        ``options`` are the other arguments of ``fit``.
        """
        config = replace(self.config, resume=checkpoint or True)
        return Trainer(config, plan=self.given_plan, reporter=self.reporter).fit(
            model, train_dataset, **options
        )

    def evaluate(
        self,
        model: nn.Module,
        dataset: SizedDataset | Iterable[Any],
        *,
        loss_fn: LossFn | None = None,
        collate_fn: Collate | None = None,
    ) -> float:
        """Return the mean loss over ``dataset``, each sample once over all ranks; every rank holds all of ``model``."""
        return self.measure(model, dataset, loss_fn=loss_fn, collate_fn=collate_fn)["loss"]

    def measure(
        self,
        model: nn.Module,
        dataset: SizedDataset | Iterable[Any],
        metrics: Metrics | None = None,
        *,
        loss_fn: LossFn | None = None,
        collate_fn: Collate | None = None,
    ) -> dict[str, float]:
        """Return ``loss`` and the metrics over ``dataset``, each sample once over all ranks (see ``MetricSet``)."""
        task = self._inference(Objective.of(loss_fn), metrics, collate_fn)
        return evaluation.measure(task, model, dataset)

    def predict(
        self, model: nn.Module, dataset: SizedDataset, *, collate_fn: Collate | None = None
    ) -> Tensor:
        """Return the outputs for all samples, in the dataset's order; targets of a pair or a dict are not used."""
        return evaluation.predict(self._inference(Objective(), None, collate_fn), model, dataset)

    def export(self, state: TrainState, path: str | Path) -> None:
        """Write the whole model's ``state_dict``, for any strategy; all ranks must call this before the next ``fit``."""
        state.export(Path(path))

    def _inference(
        self, objective: Objective, metrics: Metrics | None, collate_fn: Collate | None
    ) -> evaluation.Task:
        config, plan = self.config, self._plan_of_inference()
        strategy = evaluation.connect(config, plan)
        return evaluation.Task(
            strategy,
            objective,
            make_autocast(plan.precision, strategy.device),
            lambda dataset, sampler: make_loader(
                dataset, sampler, plan.batch_size, config.num_workers, collate_fn=collate_fn
            ),
            metrics,
        )

    def _plan_of_inference(self) -> Plan:
        config, batch_size = self.config, self.config.batch_size
        return Plan(
            batch_size=DEFAULT_BATCH_SIZE if batch_size == "auto" else batch_size,
            precision="bf16" if config.precision == "bf16" else "fp32",
        )

    def plan(
        self,
        model: nn.Module,
        train_dataset: SizedDataset | Iterable[Any],
        *,
        devices: int | None = None,
        memory_bytes: int | None = None,
        loss_fn: LossFn | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
        collate_fn: Collate | None = None,
    ) -> PlanTable:
        """List the plans that the config allows, with predicted memory, step time and reasons; train nothing.

        For ``devices`` like this one (None: as many as ranks) with ``memory_bytes`` each (None: the
        free memory).  The table is meant to be printed.

        Raises:
            CannotEstimate: the model cannot be traced without data.
            DoesNotFit: no plan fits into memory; its ``table`` lists the candidates.
        """
        training = Training.of(
            self.config, model, train_dataset, choose_device(), loss_fn, optimizer, collate_fn
        )
        ranks = devices or int(os.environ.get("WORLD_SIZE", "1"))
        return make_table(training, ranks, memory_bytes=memory_bytes)

    def _make_run(
        self,
        prepared: nn.Module,
        state: TrainState,
        train_dataset: Any,
        val_dataset: Any | None,
        objective: Objective,
        checkpointer: Checkpointer,
        stop_request: StopRequest,
    ) -> Run:
        strategy, config = state.strategy, self.config
        return Run(
            config=config,
            strategy=strategy,
            model=prepared,
            around_forward=forward_context(strategy.plan, strategy.device),
            objective=objective,
            state=state,
            train_dataset=train_dataset,
            val_dataset=val_dataset,
            checkpointer=checkpointer,
            reporter=self.reporter,
            stop_request=stop_request,
            loss_watch=LossWatch(
                self.reporter, strategy.device, strategy.ranks.rank, stops=config.stop_on_nan
            ),
            balance=Balance(strategy, self.reporter, divides=config.load_balance),
            # DDP measures its own communication.
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
        dataset: Any,
        strategy: Strategy,
        optimizer: Optimizer | MakeOptimizer | None,
        scheduler: LRScheduler | MakeScheduler | None,
    ) -> TrainState:
        config = self.config
        sampler = make_sampler(
            dataset,
            seed=config.seed,
            rank=strategy.data_rank,
            world_size=strategy.data_ranks,
            shuffle=config.shuffle,
        )
        raw = make_optimizer(optimizer, model, config, strategy.plan.strategy)
        growth = batch_growth(config, strategy.plan, strategy.data_ranks)
        scale_rate(raw, config, growth)
        ready = prepare_optimizer(raw, strategy)
        steps = warmup_steps(config, count_steps(config, strategy.plan, sampler, 0), growth)
        rate = add_warmup(ready, make_scheduler(scheduler, ready), steps)
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
