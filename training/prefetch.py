"""The name that scripts use for ``training.data.prefetch``."""

from training.data.prefetch import DevicePrefetcher

__all__ = ["DevicePrefetcher"]
