"""Metrics of an evaluation besides the loss: torchmetrics and alike, or functions of outputs and targets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from training.config import ConfigError
from training.data import move_to

Metrics = Mapping[str, Any] | Sequence[Any]
Gather = Callable[[Any], list[Any]]


class MetricSet:
    """Metrics over all samples and all ranks.

    A metric has ``update(outputs, targets)``, ``compute()`` and ``reset()``, as in torchmetrics, which
    synchronise themselves; one that does not (no ``sync``) is given the samples of all ranks on each.  A
    function ``metric(outputs, targets)`` is averaged over the samples.
    """

    def __init__(self, metrics: Metrics | None, device: torch.device, ranks: int, gather: Gather) -> None:
        self._metrics = name_metrics(metrics)
        self._gather, self._ranks = gather, ranks
        self._sums: dict[str, tuple[float, int]] = {}
        for metric in self._metrics.values():
            if is_metric(metric):
                metric.reset()
            if hasattr(metric, "to"):
                metric.to(device)

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def update(self, outputs: Any, targets: Any, size: int) -> None:
        """Add a batch, of which this rank's share are the first ``size`` samples; all ranks must call this."""
        outputs, targets = _first(outputs, size), _first(targets, size)
        of_ranks: list[tuple[Any, Any, int]] | None = None
        for name, metric in self._metrics.items():
            if not is_metric(metric):
                if size:
                    total, samples = self._sums.get(name, (0.0, 0))
                    self._sums[name] = total + float(metric(outputs, targets)) * size, samples + size
            elif hasattr(metric, "sync") or self._ranks == 1:
                if size:
                    metric.update(outputs, targets)
            else:
                if of_ranks is None:
                    host = torch.device("cpu")
                    of_ranks = self._gather((move_to(outputs, host), move_to(targets, host), size))
                for others, wanted, count in of_ranks:
                    if count:
                        metric.update(others, wanted)

    def compute(self) -> dict[str, float]:
        """Return the values over all ranks; all ranks must call this."""
        values: dict[str, float] = {}
        of_ranks = self._gather(self._sums) if self._ranks > 1 else [self._sums]
        for name, metric in self._metrics.items():
            if is_metric(metric):
                values |= flatten(name, metric.compute())
            else:
                sums = [each.get(name, (0.0, 0)) for each in of_ranks]
                values[name] = sum(total for total, _ in sums) / max(sum(count for _, count in sums), 1)
        return values


def is_metric(value: object) -> bool:
    return all(hasattr(value, name) for name in ("update", "compute", "reset"))


def name_metrics(metrics: Metrics | None) -> dict[str, Any]:
    """Return the metrics by name; metrics of a list are called as their class or function.

    Raises:
        ConfigError: one is neither a metric nor a function, or two have the same name.
    """
    if metrics is None:
        return {}
    if is_metric(metrics) or callable(metrics):  # a single one, or a MetricCollection
        metrics = [metrics]
    named = [*metrics.items()] if isinstance(metrics, Mapping) else [(_name(each), each) for each in metrics]
    for name, metric in named:
        if not (is_metric(metric) or callable(metric)):
            raise ConfigError(
                f"metrics has {name!r}, which is a {type(metric).__name__}; a metric has update(outputs, targets), "
                "compute() and reset(), or is a function of outputs and targets."
            )
    if len(dict(named)) < len(named):
        raise ConfigError("Two metrics have the same name; pass a dict that names them.")
    return dict(named)


def flatten(name: str, value: Any) -> dict[str, float]:
    """Return the numbers of a computed metric; several of them are numbered, numbers of a dict keep their names."""
    if isinstance(value, Mapping):
        return {key: each for part in value for key, each in flatten(str(part), value[part]).items()}
    numbers = torch.as_tensor(value).detach().flatten().tolist()
    return (
        {name: numbers[0]} if len(numbers) == 1 else {f"{name}_{n}": each for n, each in enumerate(numbers)}
    )


def _name(metric: object) -> str:
    own = getattr(metric, "__name__", type(metric).__name__)
    return own[0].lower() + own[1:]


def _first(value: Any, size: int) -> Any:
    return value[:size] if isinstance(value, Tensor) and value.dim() else value
