"""Former name of ``training.data.prefetch``, kept for scripts."""

from training.data.prefetch import DevicePrefetcher

__all__ = ["DevicePrefetcher"]
