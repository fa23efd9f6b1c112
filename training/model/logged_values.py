"""Values that a module logs in its steps, as PyTorch Lightning's modules do."""

from typing import Any

from torch import Tensor

from training.model.batches import Gather
from training.model.metrics import flatten, is_metric


class LoggedValues:
    """What a module logs: values of the newest step, and means over an epoch and all ranks."""

    def __init__(self, outer: "LoggedValues | None" = None) -> None:
        """Create a log; ``outer`` is the training's log, while a validation has its own."""
        self.outer = outer
        self.weight = 1  # samples of the current batch
        self._step: dict[str, float | Tensor] = {}
        self._sums: dict[str, tuple[Any, float]] = {}
        self._metrics: dict[str, Any] = {}

    def log(
        self,
        name: str,
        value: Any,
        *,
        training: bool,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        batch_size: int | None = None,
        **_: Any,
    ) -> None:
        """As ``LightningModule.log``, which logs training steps and validation epochs by default."""
        of_step = training if on_step is None else on_step
        of_epoch = not training if on_epoch is None else on_epoch
        if is_metric(value):
            self._metrics[name] = value
            return
        value = value.detach().clone() if isinstance(value, Tensor) else value
        if of_step and training:
            self._step[f"{name}_step" if of_epoch else name] = value
        weight = batch_size or self.weight
        if of_epoch and self.weight:
            total, weights = self._sums.get(key := f"{name}_epoch" if of_step else name, (0.0, 0.0))
            self._sums[key] = total + value * weight, weights + weight

    def take_step(self) -> dict[str, float | Tensor]:
        values, self._step = self._step, {}
        return values

    def take_epoch(self, gather: Gather) -> dict[str, float]:
        """Return the means over the ranks, and forget them; a rank may have logged other names."""
        own = {name: (float(total), weight) for name, (total, weight) in self._sums.items()}
        of_ranks = gather(own)
        names = dict.fromkeys(name for each in of_ranks for name in each)
        values: dict[str, float] = {}
        for name in names:
            sums = [each[name] for each in of_ranks if name in each]
            values[name] = sum(total for total, _ in sums) / sum(weight for _, weight in sums)
        for name, metric in self._metrics.items():
            values |= flatten(name, metric.compute())
            metric.reset()
        self._sums, self._metrics = {}, {}
        return values
