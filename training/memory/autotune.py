"""Finds the largest micro-batch that fits, in few trials before a training; all ranks agree on it.

If one rank ran out of memory, the others would wait in a collective for ever.  So a trial exchanges
nothing, and ends in an agreement through host memory.
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
_FILL = 0.97  # of the limit; allocators lose some memory to fragments
_FIRST = 4  # samples of the first trial
_OOM_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "unable to allocate",
)


_HOST_OOM_MESSAGES = ("can't allocate memory", "unable to allocate")
_REQUESTED_SIZE = re.compile(r"Tried to allocate ([\d.]+ [KMG]iB)")


class DoesNotFit(Exception):
    """Not even one sample fits into memory."""


class OtherRankFailed(Exception):
    """Another rank failed; its own error says why."""


class OutOfMemoryInStep(torch.OutOfMemoryError):
    """A step that cannot be retried ran out of memory; resume from the newest checkpoint with a smaller plan."""

    def __init__(self, error: BaseException, *, step: int, rank: int, why: str) -> None:
        size = _REQUESTED_SIZE.search(str(_root(error)))
        super().__init__(
            f"CUDA out of memory on rank {rank} in step {step}{f' (tried to allocate {size[1]})' if size else ''}, which "
            f"cannot be retried: {why}.\nResume from the newest checkpoint with a smaller micro-batch; the next attempt of "
            "a job of kind 'model' does so by itself."
        )


@dataclass(frozen=True, slots=True)
class Trial:
    batch_size: int
    fits: bool
    peak_bytes: int  # of this rank; up to the failure, if it failed


@dataclass(frozen=True, slots=True)
class Found:
    """The largest batch size that fits on all ranks, and the trials that found it."""

    batch_size: int
    trials: tuple[Trial, ...]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, on a GPU or the host."""
    error = _root(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OOM_MESSAGES)


def is_host_memory(error: BaseException) -> bool:
    """Return whether an out-of-memory error is about host memory."""
    error = _root(error)
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in _HOST_OOM_MESSAGES)


def _root(error: BaseException) -> BaseException:
    """Return the first of a chain of causes: torch's pipelines wrap the error of a stage."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def agree_alone(numbers: Sequence[int]) -> list[int]:
    return [*numbers]


def make_agreement(group: distributed.ProcessGroup) -> Agree:
    """Make an agreement over a gloo group, separate from the group of the gradients."""

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
    """Find the largest batch size up to ``most``, within a tenth, in at most four trials.

    ``attempt(batch_size)`` is one forward and backward pass without any exchange between ranks; it
    must leave no gradients behind.  ``reserve_bytes`` is what a step needs in addition, such as the
    optimizer's state if it does not exist yet.  The memory after each operation is linear in the batch
    size, so two small trials predict where the highest of these lines meets the limit; a third trial
    checks the prediction, a fourth corrects it.

    Raises:
        DoesNotFit: a single sample does not fit on some rank.
        OtherRankFailed: an attempt failed on another rank for another reason; that rank raises its own error.
    """
    search = _Search(attempt, meter, agree, reserve_bytes)
    for _ in range(MOST_TRIALS):
        size = min(search.choose(), most)
        if size <= search.fits_at:
            break
        search.try_size(size)
    if not search.fits_at:
        raise DoesNotFit(
            "A single sample does not fit into memory. Activation checkpointing, offload, or a strategy "
            "that splits the model over more devices needs less."
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
        self._traces: list[tuple[Trial, list[int]]] = []  # of trials that fit
        self.fits_at = self.failed_at = 0  # the largest size that fit, the smallest that did not

    def try_size(self, size: int) -> None:
        """Try a size, and note whether it fits on all ranks."""
        self._meter.start()
        fits, failure = True, None
        try:
            with self._meter.measuring():
                self._attempt(size)
            fits = self._meter.peak_bytes <= self._limit_bytes
        except Exception as error:  # noqa: BLE001 -- the other ranks must learn of any failure
            fits, failure = False, None if is_out_of_memory(error) else error
        trial_bytes, trace = self._meter.peak_bytes, self._meter.trace
        clear_memory()
        (agreed,) = self._agree([-1 if failure else int(fits)])
        if failure is not None:
            raise failure
        if agreed < 0:
            raise OtherRankFailed(
                "Another rank failed during the search for a batch size; its error says why."
            )
        self.trials.append(Trial(size, bool(agreed), trial_bytes))
        if agreed:
            self._traces.append((self.trials[-1], trace))
            self.fits_at = max(size, self.fits_at)
        else:
            self.failed_at = min(size, self.failed_at or size)

    def choose(self) -> int:
        """Choose the next size; not above ``fits_at`` if nothing remains to gain."""
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
        """Predict the largest size that stays under the limit, from two trials."""
        (small, low), (large, high) = self._traces
        if len(low) != len(high):  # different operations: only the peaks are comparable
            low, high = [small.peak_bytes], [large.peak_bytes]
        grown = large.batch_size - small.batch_size
        # Scratch memory within an operation shows in the peak only, and grows with the batch.
        inside = max(0, large.peak_bytes - max(high)) / large.batch_size
        room = float("inf")
        for here, there in zip(low, high, strict=True):
            slope = (there - here) / grown + inside
            fixed = there - (there - here) / grown * large.batch_size
            if slope > 0:
                room = min(room, (_FILL * self._limit_bytes - fixed) / slope)
        return max(int(min(room, 1 << 40)), self.fits_at)


def clear_memory() -> None:
    """Free the memory of a failed step, after its traceback is gone."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        torch.cuda.empty_cache()


def reserve_for_optimizer(optimizer: torch.optim.Optimizer) -> int:
    """Estimate the bytes of optimizer state that does not exist yet: two moments, or one for SGD with momentum."""
    if optimizer.state:
        return 0
    moments = {"SGD": 1, "Adagrad": 1, "RMSprop": 1}.get(type(optimizer).__name__, 2)
    if type(optimizer).__name__ == "SGD" and not optimizer.defaults.get("momentum"):
        moments = 0
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return int(moments * sum(weight.numel() * weight.element_size() for weight in weights))
