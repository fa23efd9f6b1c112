"""Checkpoints that are whole or absent, and are checked before they are used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.checkpoint.checkpointer import Checkpoint as Checkpoint
    from training.checkpoint.checkpointer import Checkpointer as Checkpointer

__all__ = ["Checkpoint", "Checkpointer"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'training.checkpoint' has no attribute {name!r}")
    from training.checkpoint import checkpointer  # imports torch, which store.py does without

    return getattr(checkpointer, name)
