"""How a batch becomes a loss: pairs of inputs and targets, dicts of arguments, models that return their loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any, cast

from torch import Tensor, nn

from training.config import ConfigError
from training.model.objective import LossFn, default_loss

TARGET_NAMES = ("labels", "label", "label_ids", "targets", "target")
Gather = Callable[[Any], list[Any]]
_OWN = "labels"  # the name under which Hugging Face models take targets


class BatchError(Exception):
    """A batch, or what the model returned for it, gives no loss; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The loss of a batch, if it has one, with the outputs and targets that it compares."""

    loss: Tensor | None
    outputs: Any
    targets: Any


class Objective:
    """Computes the loss of a batch.

    A pair is inputs and targets: ``loss_fn(model(inputs), targets)``.  A dict holds the arguments of the model
    by name, as in Hugging Face's libraries: ``model(**batch)``, whose result has a ``loss``; entries that
    ``forward`` does not name are left out.  With ``loss_fn``, a dict's targets stay out of the model.  Any other
    batch is the model's only argument, and also its target.
    """

    def __init__(self, loss_fn: LossFn | None = None) -> None:
        self.loss_fn = loss_fn

    @classmethod
    def of(cls, wanted: "LossFn | Objective | None") -> "Objective":
        return wanted if isinstance(wanted, Objective) else cls(wanted)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of the batch; ``model`` may be wrapped by a strategy."""
        if type(batch) in (tuple, list) and len(batch) == 2:  # the most frequent kind
            return self.pair_loss(model(batch[0]), batch[1])
        loss = self.compare(model, batch).loss
        assert loss is not None  # noqa: S101 -- only a validation may have none
        return loss

    def compare(self, model: nn.Module, batch: Any) -> Compared:
        """Return the loss with outputs and targets, for metrics.

        Raises:
            BatchError: the batch or the model's result cannot be used.
        """
        if isinstance(batch, Mapping):
            return self._compare_entries(model, batch)
        if isinstance(batch, tuple | list):
            inputs, targets = split_pair(batch)
            outputs = model(inputs)
            return Compared(self.pair_loss(outputs, targets), scores(outputs), targets)
        outputs = model(batch)
        loss = find_loss(outputs, batch) if self.loss_fn is None else self.loss_fn(outputs, batch)
        return Compared(loss, scores(outputs), batch)

    def pair_loss(self, outputs: Any, targets: Any) -> Tensor:
        if self.loss_fn is not None:
            return self.loss_fn(outputs, targets)
        return default_loss(scores(outputs), targets)

    def predict(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the outputs for a batch, of which the targets are not used."""
        if isinstance(batch, Mapping):
            entries = {name: value for name, value in batch.items() if name not in TARGET_NAMES}
            return cast(Tensor, scores(_call(model, entries)))
        return cast(Tensor, scores(model(batch[0] if isinstance(batch, list | tuple) else batch)))

    def validate(self, model: nn.Module, batch: Any, size: int) -> Compared:
        """As ``compare``, in an evaluation; ``size`` is the number of samples that count."""
        return self.compare(model, batch)

    def take_step_values(self) -> dict[str, float | Tensor]:
        """Return and forget what the model itself recorded in the newest step."""
        return {}

    def take_epoch_values(self, gather: Gather) -> dict[str, float]:
        """Return and forget what the model itself recorded over an epoch; all ranks must call this."""
        return {}

    def take_validation_values(self, gather: Gather) -> dict[str, float]:
        """Return and forget what the model itself recorded in an evaluation; all ranks must call this."""
        return {}

    def _compare_entries(self, model: nn.Module, batch: Mapping[str, Any]) -> Compared:
        target_name = next((name for name in TARGET_NAMES if name in batch), None)
        targets = batch if target_name is None else batch[target_name]
        if self.loss_fn is not None:
            entries = {name: value for name, value in batch.items() if name != target_name}
            outputs = _call(model, entries)
            return Compared(self.loss_fn(outputs, targets), scores(outputs), targets)
        outputs = _call(model, batch, target_name)
        if target_name is not None and isinstance(outputs, Tensor) and outputs.dim():
            return Compared(default_loss(outputs, batch[target_name]), outputs, targets)
        return Compared(find_loss(outputs, batch), scores(outputs), targets)


def split_pair(batch: Any) -> tuple[Any, Any]:
    """Return inputs and targets.

    Raises:
        BatchError: the batch is not a pair.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    what = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"type {type(batch).__name__}"
    raise BatchError(
        f"A batch of {what} is not a pair of inputs and targets; make samples pairs, or dicts with the "
        "names of forward()'s arguments."
    )


def pair_of_stages(batch: Any) -> tuple[Any, Any]:
    """As ``split_pair``, for strategies that run a model in stages; raises ConfigError."""
    try:
        return split_pair(batch)
    except BatchError as error:
        raise ConfigError(f"strategy 'pipeline' needs pairs of tensors: {error}") from error


def find_loss(outputs: Any, batch: Any) -> Tensor:
    """Return the loss that a model computed itself: its entry or attribute ``loss``, or a single number.

    Raises:
        BatchError: the model computed no loss.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(outputs, Tensor) and not outputs.dim():
        loss = outputs
    elif loss is None and isinstance(outputs, tuple | list):
        numbers = [each for each in outputs if isinstance(each, Tensor) and not each.dim()]
        loss = numbers[0] if len(numbers) == 1 else None
    if isinstance(loss, Tensor):
        return loss.mean() if loss.dim() else loss
    names = f" from {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
    raise BatchError(
        f"The model returned a {type(outputs).__name__} without a loss{names}. Add '{_OWN}' to the samples if the "
        "model computes its loss from them, or pass fit() a loss_fn(outputs, targets)."
    )


def scores(outputs: Any) -> Any:
    """Return the outputs that losses and metrics compare: the ``logits`` of a Hugging Face model, or all."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's model from the wrapper of a strategy."""
    while isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    return model


def _call(model: nn.Module, entries: Mapping[str, Any], target_name: str | None = None) -> Any:
    """Call the model with the entries that its ``forward`` takes."""
    names, takes_others = _arguments(type(unwrapped(model)).forward)
    arguments = {
        name: value
        for name, value in entries.items()
        if name in names or (takes_others and (not names or isinstance(value, Tensor)))
    }
    if target_name is not None and target_name not in names and _OWN in names:
        arguments.pop(target_name, None)
        arguments[_OWN] = entries[target_name]
    inputs = [value for name, value in entries.items() if name != target_name and isinstance(value, Tensor)]
    if set(arguments) <= {target_name} and len(inputs) == 1:  # whatever the only input is called
        return model(inputs[0])
    if not arguments:
        raise BatchError(
            f"forward() of {type(unwrapped(model)).__name__} takes {', '.join(names) or 'nothing'}, and the batch "
            f"has {', '.join(map(str, entries))}; rename the columns, or pass fit() a collate_fn."
        )
    return model(**arguments)


@lru_cache(maxsize=64)
def _arguments(forward: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """Return the names of a ``forward``'s arguments, and whether it takes any others."""
    parameters = [*signature(forward).parameters.values()][1:]  # without self
    names = tuple(
        each.name
        for each in parameters
        if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    )
    return names, any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
