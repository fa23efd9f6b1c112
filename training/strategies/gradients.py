"""Gradients on several ranks: averaged and clipped as if they were on one."""

import re
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of ``tensor``, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def average_gradients(parameters: Iterable[Parameter], group: ProcessGroup) -> None:
    """Average gradients over the ranks of ``group``, in one message per dtype."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is None and parameter.requires_grad:  # another rank may have one
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            by_type.setdefault(parameter.grad.dtype, []).append(local(parameter.grad))
    for gradients in by_type.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        distributed.all_reduce(flat, group=group)
        flat /= distributed.get_world_size(group)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def exchange_with_empty_pass(model: DistributedDataParallel, device: torch.device, *, some: bool) -> None:
    """Exchange delayed gradients through DDP itself, with its buckets and compression.

    DDP exchanges the existing gradients after a backward pass; this pass adds zero to them.  With ``some``,
    parameters without a gradient on any rank stay without.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if some:
        has = torch.tensor([parameter.grad is not None for parameter in parameters], device=device).int()
        distributed.all_reduce(has, distributed.ReduceOp.MAX, group=model.process_group)
        parameters = [each for each, there in zip(parameters, has.tolist(), strict=True) if there]
    if not parameters:
        return
    module = model.module
    model.module = _Nothing(parameters)
    try:
        torch.autograd.backward(model())
    finally:
        model.module = module


def find_unreduced(model: DistributedDataParallel) -> dict[str, Parameter]:
    """Return the parameters without a gradient from the last backward pass, for which other ranks wait."""
    try:
        model._check_reducer_finalized()  # type: ignore[no-untyped-call]  # torch's has no types
    except RuntimeError as error:
        indices = re.search(r"indices which did not receive grad for rank \d+:([\d\s]*)", str(error))
        trained = [each for each in model.module.named_parameters() if each[1].requires_grad]
        return dict(trained[int(number)] for number in (indices[1].split() if indices else ()))
    return {}


def give_zeros(model: DistributedDataParallel, parameters: Sequence[Parameter]) -> None:
    """Complete the exchange of a backward pass with zeros for the ``parameters`` that it did not reach.

    Raises:
        RuntimeError: the exchange is still incomplete.
    """
    if parameters:
        torch.autograd.backward(_Nothing(parameters)())
    model._check_reducer_finalized()  # type: ignore[no-untyped-call]  # as above


class _Nothing(nn.Module):
    """Returns zero as a function of parameters, in the order in which a backward pass finishes them."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__()
        # Not a list of parameters, which would become this module's own.
        self._sums: Callable[[], list[Tensor]] = lambda: [each.sum().float() for each in parameters]

    def forward(self) -> Tensor:
        return torch.stack(self._sums()).sum() * 0


def clip_sharded(
    parameters: Iterable[Parameter],
    max_norm: float,
    device: torch.device,
    shards: ProcessGroup | None,
    stages: ProcessGroup | None,
) -> None:
    """Scale gradients to ``max_norm`` over all ranks.

    Split DTensors are parts of one gradient over the ranks of ``shards``; other tensors are replicated
    there.  Each rank of ``stages`` has gradients of its own.  The groups communicate over ``device``;
    gradients may be offloaded from it.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [local(gradient) for gradient in gradients if _is_split(gradient)]
    whole = [local(gradient) for gradient in gradients if not _is_split(gradient)]
    total = _sum_of_squares(parts, device)
    if shards is not None:
        distributed.all_reduce(total, group=shards)
    total = total + _sum_of_squares(whole, device)
    if stages is not None:
        distributed.all_reduce(total, group=stages)
    factor = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)  # torch's own rule
    for gradient in (*parts, *whole):
        gradient.mul_(factor.to(gradient.device))


def _is_split(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor) and any(placement.is_shard() for placement in tensor.placements)


def _sum_of_squares(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    norms = [
        torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
        for tensor in tensors
        if tensor.numel()
    ]
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([norm.double() for norm in norms]).square().sum().to(device)
