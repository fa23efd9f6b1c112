"""The interface of strategies."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.config.plan import Plan
from training.strategies.ranks import Ranks


class Weights(TypedDict, total=False):
    """State of a model and its optimizer; empty on ranks that do not have it."""

    model: dict[str, Any]  # tensors by name
    optimizer: dict[str, Any]  # as of ``Optimizer.state_dict``


class Strategy(Protocol):
    """How one training step is spread over the ranks of a job."""

    gathers: ClassVar[bool]  # whether ``full_state`` needs communication
    saves_shards: ClassVar[
        bool
    ]  # whether ``sharded_state`` has DTensors, so that each rank saves its own part
    staged: ClassVar[bool]  # whether a micro-batch runs by ``run_stages`` instead of the model
    repeats: bool  # whether passes without ``exchange`` can fail on a rank without leaving others waiting
    unused: list[str]  # parameters without a gradient in a step of this rank, if other ranks wait for them
    expects_unused: bool  # set on all ranks at the same step, once one has ``unused`` parameters
    plan: Plan
    device: torch.device
    ranks: Ranks
    data_rank: int  # this rank sees the samples of ``data_rank`` out of ``data_ranks``
    data_ranks: int

    def prepare(self, model: nn.Module) -> nn.Module:
        """Shard or replicate the model, in place if possible; return the model to call in a step.

        Call once, before the optimizer is made: parameters may be replaced by shards.
        """

    def shard_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer to step, made from an optimizer of the prepared model's parameters."""

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        """Return the context for forward and backward; gradients are exchanged only in the last micro-batch.

        Without ``exchange`` this rank waits for no other, and ``finish_gradients`` exchanges later.  A strategy
        that exchanges within a pass asks all ranks before each exchange (see ``memory.gate``).
        """

    def backward(self, loss: Tensor) -> None:
        """Back-propagate."""

    def run_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor], weight: float) -> Tensor:
        """Run forward and backward of a micro-batch with loss weight ``weight``; return its mean loss, on all ranks."""

    def evaluate_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor]) -> Tensor:
        """Run forward only; return the mean loss, on all ranks."""

    def end_passes(self) -> None:
        """End the passes of a step; raise OutOfMemoryNoticed if one continued without memory."""

    def forget_passes(self) -> None:
        """Drop what failed passes left, except gradients; all ranks must call this."""

    def take_plan(self, plan: Plan) -> None:
        """Continue with another micro-batch size; all ranks must call this between the passes of two steps.

        Raises:
            DoesNotFit: the micro-batch cannot be divided as this strategy needs.
        """

    def finish_gradients(self) -> None:
        """Exchange the gradients that the last backward pass did not, before clipping."""

    def adapt(self) -> tuple[nn.Module, list[str]] | None:
        """If ``expects_unused`` is newly set, return the model to call from now on, and the unused parameters.

        All ranks must call this after each step.
        """

    def clip(self, model: nn.Module, max_norm: float) -> None:
        """Scale the gradients down to a common ``max_norm``, as if they were on one rank."""

    def after_step(self) -> None:
        """Exchange weights after the optimizer's step, if the strategy does."""

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        """Return model and optimizer state as a single rank would have them; all ranks must call this.

        Complete on rank 0, possibly empty elsewhere.  The optimizer's keys are the numbers of the
        parameters in the order of its groups, so that every strategy can load the state of any other.
        """

    def load_full_state(self, model: nn.Module, optimizer: Optimizer, full: Weights) -> None:
        """Load this rank's part of a ``full_state``; all ranks must call this with the full state."""

    def sharded_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        """Return the state with split tensors as DTensors, without waiting for any rank.

        Equals ``full_state`` if ``saves_shards`` is false.
        """

    def load_sharded_state(self, model: nn.Module, optimizer: Optimizer, shard: Weights) -> None:
        """Load a state of the form of ``sharded_state``."""

    def measure_communication(self) -> float | None:
        """Return the share of the newest measured step spent exchanging gradients, 0 to 1; None if unknown."""

    def close(self) -> None:
        """End the groups that ``prepare`` and the constructor started."""
