"""A step's passes once more, with smaller micro-batches, where memory ran out in them; all ranks agree on it.

A rank alone out of memory would leave the others waiting in a collective for ever.  So passes that
may fail for memory exchange nothing, or ask at a ``Gate`` before they do, and they end in an agreement
over the host.  Only when all ranks are well does the step go on.
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
from training.state import capture_rng, restore_rng

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
    """A step's passes, again with half the micro-batch (or the next divisor) as long as some rank has no memory for them.

    ``passes(size)`` runs forward and backward over all samples that this rank has in the step, in
    micro-batches of ``size``, each loss weighed by its share of the step, without any exchange between
    ranks, or with a ``Gate`` before each.  The effective batch stays, and so do the numbers: gradients,
    random generators and buffers are as before when it is called again, after ``forget`` has dropped
    what else the failed passes left.  Returns what it returned and the size that fits, which the next
    step begins with.  Without ``all_come`` others wait in the midst of a pass for a rank that fails there: only
    OutOfMemoryNoticed is agreed on then, and any other error is raised at once.

    Raises:
        DoesNotFit: some rank has no memory for one sample.
        OtherRankFailed: another rank failed for another reason; where it did, its own error.
    """
    rng, buffers = capture_rng(), [buffer.clone() for buffer in model.buffers()]
    while True:
        result, (agreed, short) = _try(passes, batch_size, agree, rank, all_come)
        if agreed:
            return result, batch_size  # type: ignore[return-value]  # it succeeded, so it is there
        if batch_size == 1:
            raise DoesNotFit(
                "Out of memory with a single sample in a micro-batch; use a plan that needs less."
            )
        forget()
        model.zero_grad(set_to_none=True)
        clear_memory()
        restore_rng(rng)
        _restore(model, buffers)
        less = batch_size // least_factor(batch_size)  # the parts of a step stay equal
        if reporter is not None:
            reporter.event(
                events.LESS_MEMORY_EVENT,
                step=step,
                rank=short,
                from_batch_size=batch_size,
                to_batch_size=less,
            )
        batch_size = less


def _try(
    passes: Passes[T], batch_size: int, agree: Agree, rank: int, all_come: bool
) -> tuple[T | None, list[int]]:
    """What ``passes`` returned, and what all ranks agreed on: whether all succeeded, and who had no memory."""
    result: T | None = None
    failure: Exception | None = None
    message: list[int] | None = [1, NO_RANK]
    answer: list[int] = []
    try:
        result = passes(batch_size)
    except OthersStopped as told:
        message, answer = None, told.answer
    except Exception as error:
        if not all_come and not isinstance(error, OutOfMemoryNoticed):
            raise
        failure = None if is_out_of_memory(error) else error
        message = [-1, NO_RANK] if failure else [0, rank]
    # Not before the error is gone, which keeps the failed step's tensors alive.
    if message is not None:
        answer = agree(message)
    if failure is not None:
        raise failure
    if answer[0] < 0:
        raise OtherRankFailed("Another rank failed in this step; its error says why.")
    return result, answer


@torch.no_grad()
def _restore(model: nn.Module, buffers: list[Tensor]) -> None:
    for buffer, kept in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(kept)


def least_factor(number: int) -> int:
    """The least prime that divides ``number``, which is above 1."""
    return next((each for each in range(2, isqrt(number) + 1) if number % each == 0), number)
