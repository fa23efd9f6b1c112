"""What the owner's code gives a recipe: functions named as ``train.py:build_model`` or ``pkg.train:build_model``."""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from training.data import move_to

DATASET_PREFIX = "BERTH_DATASET_"
EVALUATION_DATA = ("evaluation_data", "build_dataset")  # names that are tried where none is given
Batch = tuple[tuple[Tensor, ...], Tensor]


class RecipeError(Exception):
    """A recipe cannot work with what it was given; the sentence says what to change."""


def find_function(name: str, *defaults: str) -> Callable[..., Any]:
    """Find the function that ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION`` names.

    Args:
        defaults: functions to look for, in this order, where the name is only a file or a module.

    Raises:
        RecipeError: the file cannot be imported, or has no such function.
    """
    place, _, function = name.partition(":")
    module = _import(place)
    for each in (function,) if function else defaults:
        found = getattr(module, each, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    wanted = function or " or ".join(defaults)
    raise RecipeError(f"{place} has no function {wanted}; add one, or name another as {place}:FUNCTION.")


def _import(place: str) -> ModuleType:
    path = Path(place)
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) == str(
            path.resolve()
        ):
            return sys.modules[path.stem]
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        if spec is None or spec.loader is None or not path.is_file():
            raise RecipeError(f"The code has no file {place}; name the file that builds the model.")
        sys.path.insert(0, str(path.parent.resolve()))
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # data-loader workers find its classes there
        spec.loader.exec_module(module)
    except RecipeError:
        raise
    except SystemExit as error:
        raise RecipeError(
            f"{place} ended itself while it was imported ({error}). Put what starts the training, and what reads its "
            'arguments, below `if __name__ == "__main__":`.'
        ) from error
    except Exception as error:
        raise RecipeError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def give_arguments(name: str, arguments: Sequence[str]) -> None:
    """Let the owner's file find on its command line what the training had there, if it reads that when it is imported."""
    sys.argv[:] = [name.partition(":")[0], *arguments]


def build_model(
    name: str, settings: Mapping[str, Any] | None = None, *, trained_with: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build the untrained model.

    Args:
        settings: of the training, by name; the function gets those that it has parameters for.
        trained_with: arguments of the training, by name; the function gets those that fit the defaults of parameters.

    Raises:
        RecipeError: the function returned something else.
    """
    function = find_function(name, "build_model")
    parameters = inspect.signature(function).parameters
    read = {key.replace("-", "_"): value for key, value in (trained_with or {}).items()}
    given = {key: value for key, value in read.items() if key in parameters and _fits(value, parameters[key])}
    known = {key.replace("-", "_"): value for key, value in (settings or {}).items()}
    model = function(**given | {key: value for key, value in known.items() if key in parameters})
    if not isinstance(model, nn.Module):
        raise RecipeError(f"{name} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def _fits(value: Any, parameter: inspect.Parameter) -> bool:
    """Whether an argument of the command line is of the kind that a parameter has by default."""
    match parameter.default:
        case inspect.Parameter.empty:
            return True
        case bool():
            return isinstance(value, bool)
        case int():
            return isinstance(value, int) and not isinstance(value, bool)
        case float():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case str():
            return isinstance(value, str)
    return False


@dataclass(frozen=True, slots=True)
class Samples:
    """Batches of inputs and targets that can be read more than once, in the same order.

    Args:
        device: where every batch is, as the model is whose owner's functions read it; None: where the data is.
    """

    read: Callable[[], Iterator[Batch]]
    device: torch.device | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self.read() if self.device is None else map(partial(move_to, device=self.device), self.read())

    def on(self, device: torch.device) -> "Samples":
        """Return the same batches on a device, each moved there once it is read."""
        return Samples(self.read, device)

    def first(self, count: int) -> Batch:
        """The inputs and targets of the first samples, at most one batch."""
        inputs, targets = next(iter(self))
        return tuple(each[:count] for each in inputs), targets[:count]


def read_samples(name: str, batch_size: int, *defaults: str, data_path: str | None = None) -> Samples:
    """Read the data that a function returns: a dataset of pairs, two tensors, or batches.

    The function gets the path of the job's data if it takes an argument.  Of a pair of datasets, which
    ``build_dataset`` may return, the second is used: the one that the training did not learn from.

    Raises:
        RecipeError: the data cannot be read as pairs of inputs and targets.
    """
    function = find_function(name, *(defaults or EVALUATION_DATA))
    takes = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if takes and data_path is None:
        raise RecipeError(f"{name} takes the path of its data, but the job reads none; name one with --data.")
    return samples_of(name, function(data_path) if takes else function(), batch_size)


def samples_of(name: str, data: Any, batch_size: int, *, shuffled: bool = False) -> Samples:
    """What a function of this name returned, as batches.

    Raises:
        RecipeError: the data cannot be read as pairs of inputs and targets.
    """
    samples = Samples(_reader(_of_pair(data), batch_size, shuffled=shuffled))
    _check(name, samples)
    return samples


def _of_pair(data: Any) -> Any:
    """The evaluation half of (training, validation); two tensors are inputs and targets."""
    if isinstance(data, tuple) and len(data) == 2:
        if all(isinstance(each, Tensor) for each in data):
            return TensorDataset(*data)
        return data[1]
    return data


def _reader(data: Any, batch_size: int, *, shuffled: bool) -> Callable[[], Iterator[Batch]]:
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size, shuffle=shuffled)
    elif not isinstance(data, DataLoader):  # batches; a generator is read only once
        data = list(data) if isinstance(data, Iterable) else [data]
    return lambda: (_pair(batch) for batch in data)


def _pair(batch: Any) -> Batch:
    try:
        inputs, targets = batch
    except (TypeError, ValueError):
        inputs = targets = None
    inputs = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    if not isinstance(targets, Tensor) or not all(isinstance(each, Tensor) for each in inputs):
        raise RecipeError(
            f"a batch is {type(batch).__name__}; recipes read pairs of inputs and targets, which are tensors"
        )
    return inputs, targets


def _check(name: str, samples: Samples) -> None:
    try:
        first = next(iter(samples), None)
    except RecipeError as error:
        raise RecipeError(f"The data of {name} cannot be used: {error}.") from None
    if first is None or not len(first[1]):
        raise RecipeError(f"The data of {name} has no samples.")


def path_of_data(*weights: Path) -> str | None:
    """The job's data beside the weights of models: the path of its only other dataset, else None."""
    own = set(map(str, weights))
    paths = [
        value for key, value in os.environ.items() if key.startswith(DATASET_PREFIX) and value not in own
    ]
    return paths[0] if len(paths) == 1 else None


def choose_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
