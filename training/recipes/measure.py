"""Measures a model on its owner's evaluation data: metrics with confidence intervals, size, latency, memory."""

import io
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.recipes.named import RecipeError, Samples

RESAMPLES = 1_000
CONFIDENCE = 0.95
MOST_RESAMPLED = 10_000  # samples; beyond them the normal approximation differs by less than its own noise
_NORMAL_QUANTILE = 1.96
WARM_UP, TIMED = 3, 20
HIGHER_IS_BETTER = frozenset({"accuracy", "auc", "f1", "precision", "recall", "r2", "score"})

Evaluate = Callable[[nn.Module, Samples], Mapping[str, float]]
Model = Callable[..., Any]  # a module, or another program that answers like one


class Metric(TypedDict):
    """A metric; ``low`` and ``high`` enclose it with 95 % confidence, null where it is not a mean over samples."""

    name: str
    value: float
    low: float | None
    high: float | None


class Measured(TypedDict):
    """What a model costs and how right it is; the first metric is the one that counts."""

    metrics: list[Metric]
    size_bytes: int
    latency_ms: float  # one sample, median
    memory_bytes: int  # on a GPU the peak while it answers, else its weights


@dataclass(frozen=True, slots=True)
class Score:
    """One metric's value for each sample."""

    name: str
    values: Tensor


def measure(model: nn.Module, samples: Samples, evaluate: Evaluate | None = None) -> Measured:
    """Measure a model on all samples.

    Raises:
        RecipeError: it answers with something that cannot be compared with the targets, or with NaN.
    """
    model.eval()
    with _PeakMemory(model) as memory:
        metrics = _own_metrics(model, samples, evaluate) if evaluate else metrics_of(score(model, samples))
    return Measured(
        metrics=metrics,
        size_bytes=size_bytes(model),
        latency_ms=latency_ms(model, samples.first(1)[0]),
        memory_bytes=memory.peak_bytes,
    )


def _own_metrics(model: nn.Module, samples: Samples, evaluate: Evaluate) -> list[Metric]:
    with torch.no_grad():
        found = dict(evaluate(model, samples))
    if not found:
        raise RecipeError(
            "evaluate returned no metrics; return a dict of numbers, the one that counts first."
        )
    metrics = [
        Metric(name=str(name), value=float(value), low=None, high=None) for name, value in found.items()
    ]
    _check_finite(metrics)
    return metrics


@torch.no_grad()
def score(model: Model, samples: Samples) -> list[Score]:
    """Score every sample; the model may be a module or another function of its inputs.

    Raises:
        RecipeError: outputs and targets have shapes that cannot be compared.
    """
    parts: dict[str, list[Tensor]] = {}
    device = device_of(model)
    for inputs, targets in samples:
        outputs = answer(model, tuple(each.to(device) for each in inputs)).float().cpu()
        for name, values in _scores(outputs, targets.cpu()).items():
            parts.setdefault(name, []).append(values)
    return [Score(name, torch.cat(values).double()) for name, values in parts.items()]


def device_of(model: Model) -> torch.device:
    found = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if found is None else found.device


def answer(model: Model, inputs: Sequence[Tensor]) -> Tensor:
    """The model's main output: of several the first, of a mapping ``logits`` or the first.

    Raises:
        RecipeError: it has no tensor among its outputs.
    """
    output = model(*inputs)
    output = getattr(output, "logits", output)
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values()), None))
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise RecipeError(f"The model answers with {type(output).__name__}, not with a tensor.")
    return output


def _scores(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    if targets.is_floating_point():
        return _distances(outputs, targets)
    if outputs.shape == targets.shape or outputs.shape == (*targets.shape, 1):
        logits, wanted = outputs.reshape(targets.shape), targets.float()
        loss = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        return {"accuracy": _by_sample(((logits > 0) == (wanted > 0)).float()), "loss": _by_sample(loss)}
    if outputs.shape[:-1] == targets.shape:
        outputs = outputs.movedim(-1, 1)
    elif (outputs.shape[0], *outputs.shape[2:]) != tuple(targets.shape):
        raise _cannot_compare(outputs, targets)
    loss = functional.cross_entropy(outputs, targets.long(), reduction="none")
    return {"accuracy": _by_sample((outputs.argmax(1) == targets).float()), "loss": _by_sample(loss)}


def _distances(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    if outputs.numel() != targets.numel() or len(outputs) != len(targets):
        raise _cannot_compare(outputs, targets)
    error = outputs.reshape(targets.shape) - targets
    return {"mse": _by_sample(error.square()), "mae": _by_sample(error.abs())}


def _cannot_compare(outputs: Tensor, targets: Tensor) -> RecipeError:
    return RecipeError(
        f"Outputs of shape {list(outputs.shape)} cannot be compared with targets of shape {list(targets.shape)}; "
        "give a function of your own with --evaluate."
    )


def _by_sample(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).mean(1)


def metrics_of(scores: Sequence[Score], seed: int = 0) -> list[Metric]:
    """The mean of each score with its confidence interval (percentile bootstrap; Efron, 1979).

    Raises:
        RecipeError: a mean is NaN or infinite.
    """
    metrics = []
    for each in scores:
        low, high = _interval(each.values, seed)
        metrics.append(Metric(name=each.name, value=float(each.values.mean()), low=low, high=high))
    _check_finite(metrics)
    return metrics


def _interval(values: Tensor, seed: int) -> tuple[float, float]:
    count = len(values)
    if count > MOST_RESAMPLED:
        mean, margin = float(values.mean()), _NORMAL_QUANTILE * float(values.std()) / count**0.5
        return mean - margin, mean + margin
    generator = torch.Generator().manual_seed(seed)
    means = torch.stack(
        [values[torch.randint(count, (count,), generator=generator)].mean() for _ in range(RESAMPLES)]
    )
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=means.dtype)).tolist()
    return low, high


def _check_finite(metrics: Sequence[Metric]) -> None:
    for metric in metrics:
        if not abs(metric["value"]) < float("inf"):
            raise RecipeError(
                f"{metric['name']} is {metric['value']} on the evaluation data, so nothing can be compared with it."
            )


def size_bytes(model: nn.Module) -> int:
    """Size of the weights as a file."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


@torch.no_grad()
def latency_ms(model: Model, inputs: Sequence[Tensor]) -> float:
    """Median time for one sample, after a few that are not counted."""
    device = device_of(model)
    inputs = tuple(each.to(device) for each in inputs)
    times_s = []
    for number in range(WARM_UP + TIMED):
        began_s = time.perf_counter()
        model(*inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= WARM_UP:
            times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s) * 1000


class _PeakMemory:
    """Memory of a model while it answers: a GPU's peak, else the bytes of its weights."""

    def __init__(self, model: nn.Module) -> None:
        self.device = device_of(model)
        self.peak_bytes = sum(each.nbytes for each in model.state_dict().values())

    def __enter__(self) -> "_PeakMemory":
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device)
