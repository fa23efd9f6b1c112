"""Runs modules written for PyTorch Lightning, recognised by their methods; Lightning itself is not needed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from types import SimpleNamespace
from typing import Any, TypedDict, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import StateDict

from training.config import ConfigError, TrainConfig
from training.model.batches import BatchError, Compared, Gather, Objective, find_loss, unwrapped
from training.model.logged_values import LoggedValues
from training.model.objective import make_scheduler

_NOT_RUN = ("optimizer_step", "backward", "configure_gradient_clipping", "lr_scheduler_step")
_UNCHANGED = "run it as it is with Lightning's own Trainer, which Berth recognises"


def is_lightning(model: object) -> bool:
    """Return whether the model brings its own steps and optimizers, as a ``LightningModule`` does."""
    return all(callable(getattr(model, name, None)) for name in ("training_step", "configure_optimizers"))


class Schedule(TypedDict, total=False):
    """What ``configure_optimizers`` says of a scheduler, by Lightning's names; other names are left alone."""

    scheduler: Any
    interval: str  # step or epoch
    frequency: int
    monitor: str  # the metric that ReduceLROnPlateau reads


class LightningObjective(Objective):
    """Calls the module's ``training_step`` and ``validation_step``, and its hooks; keeps what it logs.

    Also a callback: it is the first of the training's callbacks.
    """

    def __init__(self, module: Any, config: TrainConfig) -> None:
        super().__init__(None)
        _refuse(module)
        self._module, self._config = module, config
        self._logged = LoggedValues()
        self._schedule: Schedule = {}  # of a scheduler that does not step with each update
        self._scheduler: LRScheduler | None = None
        self._index = 0  # of the micro-batch in its epoch
        self._batch: Any = None
        self._size = config.batch_size if isinstance(config.batch_size, int) else 1
        self._outer_index = 0
        self._running = False
        self._state: Any = None
        self._trainer = _facade(config)

    def set_up(self) -> None:
        """Let the module build what it needs; call this before anything else looks at it."""
        with self._attached(self._module):
            for name, arguments in (("prepare_data", ()), ("setup", ("fit",)), ("configure_model", ())):
                _call(self._module, name, *arguments)

    def expect(self, strategy: str, total_steps: float) -> None:
        """Tell the module how long the training is, for its schedule.

        Raises:
            ConfigError: the strategy runs a model in stages, which a ``training_step`` cannot.
        """
        if strategy == "pipeline":
            raise ConfigError(
                "strategy 'pipeline' cannot cut a training_step(); choose another, such as 'fsdp'."
            )
        self._trainer.estimated_stepping_batches = total_steps

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Return the module's optimizer; its schedule is then in ``take_scheduler``."""
        with self._attached(model):
            optimizer, self._schedule = read_optimizers(model.configure_optimizers())  # type: ignore[operator]  # a module's method
        return optimizer

    def take_scheduler(self, optimizer: Optimizer) -> LRScheduler | None:
        """Return the scheduler that steps with each update, if there is one; keep one that steps with epochs."""
        scheduler = make_scheduler(self._schedule.get("scheduler"), optimizer)
        if scheduler is None or (self._schedule["interval"] == "step" and self._schedule["frequency"] == 1):
            return scheduler
        self._scheduler = scheduler
        return None

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        module: Any = unwrapped(model)
        with self._attached(module):
            batch = _transferred(module, batch)
            if module is self._module and self._running:
                self._batch = batch
                _call(module, "on_train_batch_start", batch, self._index)
            outputs = _through(model, module, "training_step", batch, self._index)
        if outputs is None:
            raise BatchError("training_step() returned no loss; return one for every batch.")
        if module is self._module and self._running:
            self._index += 1
        return find_loss(outputs, batch)

    def validate(self, model: nn.Module, batch: Any, size: int) -> Compared:
        module: Any = unwrapped(model)
        if not hasattr(module, "validation_step"):
            return super().validate(model, batch, size)
        self._logged.weight = size
        with self._attached(module):
            outputs = _with_index(module.validation_step, _transferred(module, batch), self._index)
        self._index += 1
        is_loss = isinstance(outputs, Tensor) and not outputs.dim()
        is_loss = is_loss or (isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor))
        return Compared(find_loss(outputs, batch) if is_loss else None, None, None)

    def take_step_values(self) -> dict[str, float | Tensor]:
        return self._logged.take_step()

    def take_epoch_values(self, gather: Gather) -> dict[str, float]:
        with self._attached(self._module):
            _call(self._module, "on_train_epoch_end")
        values = self._logged.take_epoch(gather)
        self._step_schedule(values)
        return values

    def take_validation_values(self, gather: Gather) -> dict[str, float]:
        with self._attached(self._module):
            _call(self._module, "on_validation_epoch_end")
        values = self._logged.take_epoch(gather)
        self._logged, self._index = self._logged.outer or self._logged, self._outer_index
        self._trainer.callback_metrics.update(values)
        return values

    # The hooks of a callback.
    def before_training(self, state: Any) -> None:
        self._state, self._running = state, True
        self._hook("on_fit_start")
        self._hook("on_train_start")

    def before_epoch(self, state: Any) -> None:
        plan = state.strategy.plan
        self._index = state.sampler.position // (plan.batch_size * state.strategy.data_ranks)
        self._logged.weight = self._size = plan.batch_size
        self._hook("on_train_epoch_start")

    def before_update(self, state: Any) -> None:
        self._hook("on_before_optimizer_step", state.optimizer)

    def after_step(self, state: Any, metrics: Mapping[str, Any]) -> None:
        self._hook("on_train_batch_end", {"loss": metrics["loss"]}, self._batch, max(self._index - 1, 0))
        every = self._schedule.get("frequency", 1)
        if self._scheduler is not None and self._schedule["interval"] == "step" and not state.step % every:
            self._scheduler.step()

    def before_validation(self, state: Any) -> None:
        self._logged, self._outer_index, self._index = LoggedValues(self._logged), self._index, 0
        self._hook("on_validation_epoch_start")

    def after_training(self, state: Any) -> None:
        self._hook("on_train_end")
        self._hook("on_fit_end")
        self._hook("teardown", "fit")
        self._running = False

    def on_exception(self, state: Any, error: BaseException) -> None:
        self._hook("on_exception", error)

    def state_dict(self) -> StateDict:
        own: StateDict = {}
        self._hook("on_save_checkpoint", own)
        scheduler = None if self._scheduler is None else self._scheduler.state_dict()
        return {"module": own, "scheduler": scheduler}

    def load_state_dict(self, state: StateDict) -> None:
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        self._hook("on_load_checkpoint", state["module"])

    def _hook(self, name: str, *arguments: Any) -> None:
        with self._attached(self._module):
            _call(self._module, name, *arguments)

    def _step_schedule(self, values: Mapping[str, float]) -> None:
        """Step a scheduler of epochs, with its metric if it watches one."""
        state, schedule = self._state, self._schedule
        if self._scheduler is None or schedule["interval"] != "epoch":
            return
        if state.sampler.epoch % schedule["frequency"]:
            return
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()
            return
        known = {**state.metrics, **values}
        if schedule["monitor"] not in known:
            raise ConfigError(
                f"The scheduler of configure_optimizers() watches {schedule['monitor']!r}, and there is no such metric; "
                f"there are: {', '.join(sorted(known)) or 'none'}."
            )
        self._scheduler.step(known[schedule["monitor"]])

    @contextmanager
    def _attached(self, module: Any) -> Iterator[None]:
        """Give the module the trainer and the log that it expects of Lightning, for one call."""
        state = self._state
        if state is not None:
            ranks = state.strategy.ranks
            self._trainer.__dict__.update(
                global_step=state.step, current_epoch=state.sampler.epoch, optimizers=[state.optimizer],
                global_rank=ranks.rank, is_global_zero=ranks.rank == 0, world_size=ranks.size,
                training=module.training, validating=not module.training,
            )  # fmt: skip
        own = module is self._module
        before = {name: module.__dict__.get(name) for name in ("log", "log_dict")}
        module.__dict__["log"] = self._log if own else _forget
        module.__dict__["log_dict"] = self._log_dict if own else _forget
        module.trainer = self._trainer
        try:
            yield
        finally:
            for name, value in before.items():
                module.__dict__.pop(name) if value is None else module.__dict__.update({name: value})
            module.trainer = None

    def _log(self, name: str, value: Any, **options: Any) -> None:
        if self._running:
            self._logged.log(name, value, training=self._module.training, **options)

    def _log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        for name, value in values.items():
            self._log(str(name), value, **options)


def read_optimizers(given: Any) -> tuple[Optimizer, Schedule]:
    """Read what ``configure_optimizers`` returned: the optimizer, and its scheduler with interval and metric.

    Raises:
        ConfigError: there are several optimizers, or none.
    """
    schedulers: Any = []
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], tuple | list):
        given, schedulers = given
    if isinstance(given, tuple | list) and len(given) == 1:
        given = given[0]
    if isinstance(given, Mapping):
        schedulers = given.get("lr_scheduler") or []
        given = given["optimizer"]
    if not isinstance(given, Optimizer):
        what = f"{len(given)} optimizers" if isinstance(given, Sequence) else f"{given!r}"
        raise ConfigError(f"configure_optimizers() returned {what}; Trainer steps exactly one: {_UNCHANGED}.")
    schedulers = [*schedulers] if isinstance(schedulers, tuple | list) else [schedulers]
    if len(schedulers) > 1:
        raise ConfigError(
            f"configure_optimizers() returned {len(schedulers)} schedulers for one optimizer; return one."
        )
    if not schedulers:
        return given, {}
    schedule = schedulers[0] if isinstance(schedulers[0], Mapping) else {"scheduler": schedulers[0]}
    defaults = {"interval": "epoch", "frequency": 1, "monitor": "val_loss"}
    return given, cast(Schedule, {**defaults, **schedule})


def _refuse(module: Any) -> None:
    """Refuse modules that replace parts of the loop, which would silently not be called."""
    if getattr(module, "automatic_optimization", True) is False:
        raise ConfigError(f"{type(module).__name__} steps its optimizers itself; {_UNCHANGED}.")
    for name in _NOT_RUN:
        own = getattr(type(module), name, None)
        if own is not None and not own.__qualname__.startswith("LightningModule."):
            raise ConfigError(
                f"{type(module).__name__} replaces {name}(), which Trainer does not call; {_UNCHANGED}."
            )


def _facade(config: TrainConfig) -> SimpleNamespace:
    """The attributes of Lightning's trainer that modules read."""
    return SimpleNamespace(
        max_epochs=config.epochs, max_steps=config.max_steps or -1, current_epoch=0, global_step=0,
        global_rank=0, local_rank=0, is_global_zero=True, world_size=1, optimizers=[],
        accumulate_grad_batches=config.gradient_accumulation_steps, callback_metrics={},
        logged_metrics={}, logger=None, loggers=[], training=True, validating=False,
        sanity_checking=False, barebones=False, fast_dev_run=False, datamodule=None,
        estimated_stepping_batches=float("inf"), callbacks=[],
    )  # fmt: skip


def _transferred(module: Any, batch: Any) -> Any:
    """Let the module change the batch on its device, as for augmentation."""
    hook = getattr(module, "on_after_batch_transfer", None)
    return batch if hook is None else hook(batch, 0)


def _through(model: nn.Module, module: Any, name: str, batch: Any, index: int) -> Any:
    """Call a method of the module inside the strategy's wrapper, which watches only ``forward``."""
    if model is module:
        return _with_index(getattr(module, name), batch, index)
    before = module.__dict__.get("forward")

    def forward(inputs: Any) -> Any:
        restore()  # so that the method may call the module itself
        return _with_index(getattr(module, name), inputs, index)

    def restore() -> None:
        if before is None:
            module.__dict__.pop("forward", None)
        else:
            module.__dict__["forward"] = before

    module.__dict__["forward"] = forward
    try:
        return model(batch)
    finally:
        restore()


def _with_index(method: Callable[..., Any], batch: Any, index: int) -> Any:
    takes_index = len(signature(method).parameters) > 1
    return method(batch, index) if takes_index else method(batch)


def _call(module: Any, name: str, *arguments: Any) -> None:
    method = getattr(module, name, None)
    if callable(method):
        method(*arguments)


def _forget(*_: Any, **__: Any) -> None:
    """Log nothing: a copy of the module runs for the planner."""
