"""Activation checkpointing: recomputes activations in the backward pass instead of keeping them.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from training.config.plan import CheckpointingName
from training.model.blocks import find_blocks

# Costly to compute, cheap to keep: "selective" keeps their results, and recomputes the rest.
_KEPT = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.convolution.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)


def checkpoint_activations(model: nn.Module, how: CheckpointingName) -> list[nn.Module]:
    """Recompute each block in the backward pass: all of it ("full"), or all but matrix products ("selective").

    Replaces only the blocks' ``forward``, so names and types in the model stay.  Returns the blocks;
    ``restore_activations`` undoes this.
    """
    if how == "none":
        return []
    blocks = find_blocks(model)
    for block in blocks:
        block.forward = partial(_recompute, block.forward, _select if how == "selective" else None)
    return blocks


def restore_activations(blocks: list[nn.Module]) -> None:
    for block in blocks:
        block.__dict__.pop("forward", None)


def _recompute(
    forward: Callable[..., Any], context: Callable[..., Any] | None, *args: Any, **kwargs: Any
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    options: dict[str, Any] = {} if context is None else {"context_fn": context}
    return checkpoint.checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)


def _select() -> Any:
    create: Any = checkpoint.create_selective_checkpoint_contexts
    return create(_decide)


def _decide(context: Any, operation: Any, *args: Any, **kwargs: Any) -> checkpoint.CheckpointPolicy:
    keep = operation in _KEPT
    return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
