"""The largest micro-batch that fits, found before a training in few trials; all ranks agree on it.

A rank alone out of memory would leave the others waiting in a collective for ever.  So a trial
exchanges nothing, and ends in an agreement over the host.
"""

import gc
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import distributed

from training.memory.gate import Agree
from training.memory.meters import Meter

MOST_TRIALS = 4
_FILL = 0.97  # of the limit; allocators need some room to cut
_FIRST = 4  # samples of the first trial
_SENTENCES = (
    "out of memory",
    "can't allocate memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "unable to allocate",
)


_ON_THE_HOST = ("can't allocate memory", "unable to allocate")
_ASKED = re.compile(r"Tried to allocate ([\d.]+ [KMG]iB)")


class DoesNotFit(Exception):
    """Not even one sample fits into memory."""


class OtherRankFailed(Exception):
    """Another rank ended with an error of its own, which says why."""


class OutOfMemoryInStep(torch.OutOfMemoryError):
    """A step that cannot be repeated ran out of memory; the training goes on from its newest checkpoint, with less."""

    def __init__(self, error: BaseException, *, step: int, rank: int, why: str) -> None:
        asked = _ASKED.search(str(_root(error)))
        super().__init__(
            f"CUDA out of memory on rank {rank} in step {step}{f' (tried to allocate {asked[1]})' if asked else ''}, which "
            f"cannot be repeated: {why}.\nResume from the newest checkpoint with a smaller micro-batch; the next attempt of "
            "a job of kind 'model' does so by itself."
        )


@dataclass(frozen=True, slots=True)
class Trial:
    batch_size: int
    fits: bool
    peak_bytes: int  # of this rank; what was reached before it failed, if it did


@dataclass(frozen=True, slots=True)
class Found:
    """The largest batch size that all ranks can train with, and what was tried to find it."""

    batch_size: int
    trials: tuple[Trial, ...]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory was exhausted, on a GPU or the host."""
    error = _root(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _SENTENCES)


def is_host_memory(error: BaseException) -> bool:
    """Of an error that ``is_out_of_memory``: whether it was the host's."""
    error = _root(error)
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in _ON_THE_HOST)


def _root(error: BaseException) -> BaseException:
    """The first of a chain of causes: torch's pipelines raise an error of their own from the stage's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def agree_alone(numbers: Sequence[int]) -> list[int]:
    return [*numbers]


def make_agreement(group: distributed.ProcessGroup) -> Agree:
    """Over a gloo group beside the one that gradients take."""

    def agree(numbers: Sequence[int]) -> list[int]:
        least = torch.tensor(numbers, dtype=torch.int64)
        distributed.all_reduce(least, distributed.ReduceOp.MIN, group=group)
        return [int(number) for number in least]

    return agree


def find_batch_size(
    attempt: Callable[[int], object],
    *,
    meter: Meter,
    most: int,
    agree: Agree = agree_alone,
    reserve_bytes: int = 0,
) -> Found:
    """At most four trials to within a tenth of the largest batch size, up to ``most``.

    ``attempt(batch_size)`` is one forward and backward pass without any exchange between ranks; it
    must leave no gradients behind.  ``reserve_bytes`` is what a step will need besides, such as the
    optimizer's state where it is not made yet.  After each operation the memory held is a straight
    line over the batch size, so two small trials tell where the highest of these lines meets the
    limit; a third proves it, a fourth corrects it.

    Raises:
        DoesNotFit: on some rank one sample is too much.
        OtherRankFailed: an attempt failed there for another reason; where it did, its own error.
    """
    search = _Search(attempt, meter, agree, reserve_bytes)
    for _ in range(MOST_TRIALS):
        size = min(search.choose(), most)
        if size <= search.fits_at:
            break
        search.try_size(size)
    if not search.fits_at:
        raise DoesNotFit(
            "One sample needs more memory than there is. Activation checkpointing, offload, or a strategy "
            "that splits the model over more devices takes less."
        )
    return Found(search.fits_at, tuple(search.trials))


class _Search:
    def __init__(
        self, attempt: Callable[[int], object], meter: Meter, agree: Agree, reserve_bytes: int
    ) -> None:
        self._attempt, self._meter, self._agree = attempt, meter, agree
        clear_memory()
        self._limit_bytes = meter.limit_bytes - reserve_bytes
        self.trials: list[Trial] = []
        self._traces: list[tuple[Trial, list[int]]] = []  # of those that fitted
        self.fits_at = self.failed_at = 0  # the largest size that fitted, the smallest that did not

    def try_size(self, size: int) -> None:
        """Note whether all ranks manage it."""
        self._meter.start()
        fits, failure = True, None
        try:
            with self._meter.measuring():
                self._attempt(size)
            fits = self._meter.peak_bytes <= self._limit_bytes
        except Exception as error:  # noqa: BLE001 -- the other ranks must hear of any failure
            fits, failure = False, None if is_out_of_memory(error) else error
        trial_bytes, trace = self._meter.peak_bytes, self._meter.trace
        clear_memory()
        (agreed,) = self._agree([-1 if failure else int(fits)])
        if failure is not None:
            raise failure
        if agreed < 0:
            raise OtherRankFailed("Another rank failed while looking for a batch size; its error says why.")
        self.trials.append(Trial(size, bool(agreed), trial_bytes))
        if agreed:
            self._traces.append((self.trials[-1], trace))
            self.fits_at = max(size, self.fits_at)
        else:
            self.failed_at = min(size, self.failed_at or size)

    def choose(self) -> int:
        """The size to try next; not above ``fits_at`` when there is nothing left to gain."""
        if self.failed_at and self.failed_at <= 2 * _FIRST:
            return (self.fits_at + self.failed_at) // 2
        if self.failed_at:
            return max(self.fits_at, int(self.failed_at * 0.93))
        if len(self._traces) < 2:
            return _FIRST << len(self._traces)
        if len(self._traces) > 2:  # the prediction was right
            return self.fits_at
        return self._agree([self._predict()])[0]

    def _predict(self) -> int:
        """Where the highest line meets the limit; all that lies under two lines per operation."""
        (small, low), (large, high) = self._traces
        if len(low) != len(high):  # not the same operations: what is known are the peaks
            low, high = [small.peak_bytes], [large.peak_bytes]
        grown = large.batch_size - small.batch_size
        # What an operation took and gave back within itself shows in the peak only; it grows with the batch.
        inside = max(0, large.peak_bytes - max(high)) / large.batch_size
        room = float("inf")
        for here, there in zip(low, high, strict=True):
            slope = (there - here) / grown + inside
            fixed = there - (there - here) / grown * large.batch_size
            if slope > 0:
                room = min(room, (_FILL * self._limit_bytes - fixed) / slope)
        return max(int(min(room, 1 << 40)), self.fits_at)


def clear_memory() -> None:
    """Give back what a failed step held; its traceback kept it alive until now."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        torch.cuda.empty_cache()


def reserve_for_optimizer(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that the optimizer's state will take and does not yet: two moments, or one for SGD with momentum."""
    if optimizer.state:
        return 0
    moments = {"SGD": 1, "Adagrad": 1, "RMSprop": 1}.get(type(optimizer).__name__, 2)
    if type(optimizer).__name__ == "SGD" and not optimizer.defaults.get("momentum"):
        moments = 0
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return int(moments * sum(weight.numel() * weight.element_size() for weight in weights))
