"""Checkpoints: written atomically, and verified before use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.checkpoint.checkpointer import Checkpoint as Checkpoint
    from training.checkpoint.checkpointer import Checkpointer as Checkpointer

__all__ = ["Checkpoint", "Checkpointer"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'training.checkpoint' has no attribute {name!r}")
    from training.checkpoint import checkpointer  # late: it imports torch, store.py does not

    return getattr(checkpointer, name)
