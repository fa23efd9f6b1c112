"""The method names that every strategy has."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.plan.types import Plan
from training.strategies.ranks import Ranks


class Strategy(Protocol):
    """How one training step is spread over the ranks of a job."""

    gathers: ClassVar[bool]  # whether ranks must talk to make a ``full_state``
    saves_shards: ClassVar[
        bool
    ]  # whether ``sharded_state`` holds DTensors, which each rank can save for itself
    staged: ClassVar[bool]  # whether micro-batches go through ``run_stages`` instead of the model
    repeats: bool  # whether a rank that fails in passes without ``exchange`` leaves no other waiting
    unused: list[str]  # parameters without a gradient in a step of this rank, where others wait for them
    expects_unused: bool  # set on all ranks at the same step once one of them has ``unused`` parameters
    plan: Plan
    device: torch.device
    ranks: Ranks
    data_rank: int  # which samples this rank sees: those of ``data_rank`` of ``data_ranks``
    data_ranks: int

    def prepare(self, model: nn.Module) -> nn.Module:
        """Shard or replicate the model, in place where it can be; what to call in a step.

        Call once, before the optimizer is made: parameters may be replaced by shards of them.
        """

    def shard_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """What to step instead of an optimizer of the prepared model's parameters."""

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        """Around forward and backward; gradients are exchanged only in the last micro-batch.

        Without ``exchange`` this rank waits for no other, and ``finish_gradients`` makes up for it; or, where
        ranks exchange in the midst of a pass, only after all have agreed to come (see ``memory.gate``).
        """

    def backward(self, loss: Tensor) -> None:
        """Back-propagate."""

    def run_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor], weight: float) -> Tensor:
        """Forward and backward of a micro-batch whose loss counts ``weight``; its mean loss, on all ranks."""

    def evaluate_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor]) -> Tensor:
        """Forward only; the mean loss, on all ranks."""

    def end_passes(self) -> None:
        """After the last micro-batch of a step; raises OutOfMemoryNoticed where one went on without memory."""

    def forget_passes(self) -> None:
        """Drop what passes left that an error ended on some rank, but for gradients; all ranks call it."""

    def take_plan(self, plan: Plan) -> None:
        """Go on with another micro-batch; all ranks call it between two steps' passes.

        Raises:
            DoesNotFit: it cannot be cut as this strategy needs it.
        """

    def finish_gradients(self) -> None:
        """Exchange what the last backward pass has not, before clipping."""

    def adapt(self) -> tuple[nn.Module, list[str]] | None:
        """Where ``expects_unused`` is new: what to call from the next step on, and what no step can rely on.

        All ranks call it after each step.
        """

    def clip(self, model: nn.Module, max_norm: float) -> None:
        """Scale the gradients down to ``max_norm`` together, as if they lay on one rank."""

    def after_step(self) -> None:
        """Exchange what is exchanged after the optimizer's step."""

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """``{"model", "optimizer"}`` as one rank alone would have them; all ranks call it.

        Complete on rank 0, perhaps empty elsewhere.  The optimizer's keys are the numbers of the
        parameters in the order of its groups, so that every strategy reads what any other wrote.
        """

    def load_full_state(self, model: nn.Module, optimizer: Optimizer, full: dict[str, Any]) -> None:
        """Take this rank's part of what ``full_state`` gave; all ranks call it, each with the whole."""

    def sharded_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """As ``full_state``, but what is split stays split, as DTensors; waits for no rank.

        Where ``saves_shards`` is false it is ``full_state``.
        """

    def load_sharded_state(self, model: nn.Module, optimizer: Optimizer, shard: dict[str, Any]) -> None:
        """Take what has the shape of ``sharded_state``."""

    def measure_communication(self) -> float | None:
        """Share of the newest measured step in which gradients travelled, 0 to 1; None where unknown."""

    def close(self) -> None:
        """End what ``prepare`` and the constructor started."""
