"""The name that scripts use for ``training.data.cache``."""

from training.data.cache import InMemory, OnDisk

__all__ = ["InMemory", "OnDisk"]
