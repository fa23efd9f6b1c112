"""Tensors that cross from one rank to another within a forward pass, and their gradients on the way back.

All ranks go through a model's operations in the same order, and the autograd engine goes back through them in
the reverse order of their creation.  So the messages of each pair of ranks match without tags, and a rank that
waits is always waited for by nobody earlier.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, Work


@dataclass(slots=True)
class Crossings:
    """The messages of a step; ``roots`` keep the backward pass going through all of them."""

    group: ProcessGroup
    device: torch.device
    roots: list[Tensor] = field(default_factory=list)
    _sent: list[tuple[Work, Tensor]] = field(default_factory=list)  # a tensor lives until it has left

    def send(self, tensor: Tensor, rank: int) -> None:
        if not tensor.requires_grad or not torch.is_grad_enabled():
            self.post(tensor, rank)
            return
        self.roots.append(cast(Tensor, _Send.apply(tensor, self, rank)))  # type: ignore[no-untyped-call]  # untyped in torch

    def receive(self, like: Tensor, rank: int) -> "Arriving":
        """Start to receive a tensor of the shape of ``like``; wait for it before its first use."""
        if not like.requires_grad or not torch.is_grad_enabled():
            buffer = torch.empty(like.shape, dtype=like.dtype, device=self.device)
            return Arriving(buffer, self.expect(buffer, rank))
        anchor = torch.zeros((), device=self.device, requires_grad=True)
        works: list[Work] = []
        received: Any = _Receive.apply(anchor, self, (like.shape, like.dtype), rank, works)  # type: ignore[no-untyped-call]  # as above
        self.roots.append(received[1])
        return Arriving(received[0], works[0])

    def post(self, tensor: Tensor, rank: int) -> None:
        whole = tensor.detach().contiguous()
        work = distributed.isend(whole, group=self.group, group_dst=rank)
        self._sent.append((_started(work), whole))

    def expect(self, buffer: Tensor, rank: int) -> Work:
        return _started(distributed.irecv(buffer, group=self.group, group_src=rank))

    def finish(self) -> None:
        """Wait until everything has left."""
        while self._sent:
            self._sent.pop()[0].wait()
        self.roots.clear()


@dataclass(slots=True)
class Arriving:
    """A tensor that may still be on its way."""

    tensor: Tensor
    work: Work | None

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.tensor


def _started(work: Work | None) -> Work:
    assert work is not None  # noqa: S101 -- only ranks outside of the group get none
    return work


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, crossings: Crossings, rank: int) -> Tensor:
        ctx.crossings, ctx.rank = crossings, rank
        ctx.shape, ctx.dtype = tensor.shape, tensor.dtype
        crossings.post(tensor, rank)
        return torch.zeros((), device=tensor.device)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        gradient = torch.empty(ctx.shape, dtype=ctx.dtype, device=ctx.crossings.device)
        ctx.crossings.expect(gradient, ctx.rank).wait()
        return gradient, None, None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        crossings: Crossings,
        kind: tuple[torch.Size, torch.dtype],  # not a tensor, whose own history would join this one's
        rank: int,
        works: list[Work],
    ) -> tuple[Tensor, Tensor]:
        ctx.crossings, ctx.rank = crossings, rank
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.dtype = kind
        buffer = torch.empty(ctx.shape, dtype=ctx.dtype, device=crossings.device)
        works.append(crossings.expect(buffer, rank))
        return buffer, torch.zeros((), device=crossings.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Any) -> Any:
        if gradient is None:  # what was received did not reach the loss
            gradient = torch.zeros(ctx.shape, dtype=ctx.dtype, device=ctx.crossings.device)
        ctx.crossings.post(gradient.to(ctx.dtype), ctx.rank)
        return None, None, None, None, None
