"""Retries the passes of a step with smaller micro-batches after an out-of-memory error; all ranks agree on it.

If one rank ran out of memory, the others would wait in a collective for ever.  So passes that may run out
of memory exchange nothing, or ask at a ``Gate`` before they do, and end in an agreement through host memory.
The step continues only once all ranks have succeeded.
"""

from collections.abc import Callable
from math import isqrt
from typing import TypeVar

import torch
from torch import Tensor, nn

from training import events
from training.memory.autotune import (
    DoesNotFit,
    OtherRankFailed,
    agree_alone,
    clear_memory,
    is_out_of_memory,
)
from training.memory.gate import NO_RANK, Agree, OthersStopped, OutOfMemoryNoticed
from training.report import Reporter
from training.rng import capture_rng, restore_rng

T = TypeVar("T")
Passes = Callable[[int], T]


def run_with_less(
    passes: Passes[T],
    batch_size: int,
    model: nn.Module,
    *,
    agree: Agree = agree_alone,
    forget: Callable[[], None] = lambda: None,
    all_come: bool = True,
    rank: int = 0,
    reporter: Reporter | None = None,
    step: int | None = None,
) -> tuple[T, int]:
    """Run a step's passes; while some rank runs out of memory, retry with half the micro-batch (or the next divisor).

    ``passes(size)`` runs forward and backward over all of this rank's samples of the step, in micro-batches
    of ``size``, each loss weighted by its share of the step.  It exchanges nothing between ranks, or asks at
    a ``Gate`` before each exchange.  The effective batch and the results stay the same: before a retry,
    gradients, random generators and buffers are restored, and ``forget`` drops what else the failed passes
    left.  Returns the result of ``passes`` and the size that fits, with which the next step starts.  Without
    ``all_come``, a rank that fails within a pass leaves others waiting: then only OutOfMemoryNoticed leads to
    a retry, and any other error is raised at once.

    Raises:
        DoesNotFit: a single sample does not fit on some rank.
        OtherRankFailed: another rank failed for another reason; that rank raises its own error.
    """
    rng, buffers = capture_rng(), [buffer.clone() for buffer in model.buffers()]
    while True:
        result, (agreed, failed_rank) = _try(passes, batch_size, agree, rank, all_come)
        if agreed:
            return result, batch_size  # type: ignore[return-value]  # set, because the passes succeeded
        if batch_size == 1:
            raise DoesNotFit(
                "Out of memory with a single sample in a micro-batch; use a plan that needs less."
            )
        forget()
        model.zero_grad(set_to_none=True)
        clear_memory()
        restore_rng(rng)
        _restore(model, buffers)
        smaller = batch_size // least_factor(batch_size)  # keeps the micro-batches of a step equal
        if reporter is not None:
            reporter.event(
                events.LESS_MEMORY_EVENT,
                step=step,
                rank=failed_rank,
                from_batch_size=batch_size,
                to_batch_size=smaller,
            )
        batch_size = smaller


def _try(
    passes: Passes[T], batch_size: int, agree: Agree, rank: int, all_come: bool
) -> tuple[T | None, list[int]]:
    """Run ``passes``; return its result, and the agreement: whether all succeeded, and which rank lacked memory."""
    result: T | None = None
    failure: Exception | None = None
    message: list[int] | None = [1, NO_RANK]
    answer: list[int] = []
    try:
        result = passes(batch_size)
    except OthersStopped as stop:
        message, answer = None, stop.answer
    except Exception as error:
        if not all_come and not isinstance(error, OutOfMemoryNoticed):
            raise
        failure = None if is_out_of_memory(error) else error
        message = [-1, NO_RANK] if failure else [0, rank]
    # Only after the error is released, because it keeps the failed step's tensors alive.
    if message is not None:
        answer = agree(message)
    if failure is not None:
        raise failure
    if answer[0] < 0:
        raise OtherRankFailed("Another rank failed in this step; its error says why.")
    return result, answer


@torch.no_grad()
def _restore(model: nn.Module, buffers: list[Tensor]) -> None:
    for buffer, saved in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(saved)


def least_factor(number: int) -> int:
    """Return the least prime factor of ``number``, which is above 1."""
    return next((each for each in range(2, isqrt(number) + 1) if number % each == 0), number)
