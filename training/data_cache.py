"""Former name of ``training.data.cache``, kept for scripts."""

from training.data.cache import InMemory, OnDisk

__all__ = ["InMemory", "OnDisk"]
