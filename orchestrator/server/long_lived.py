"""A process that serves for weeks: what it freed goes back to the system, and soon."""

import ctypes
import gc

# Of glibc's malloc.h; other C libraries have no mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
ARENAS = 2  # one a thread is the default; Python's lock lets one thread allocate at a time
# Fixed: glibc would raise it with each large array, into a heap that never shrinks.
MAPPED_FROM_BYTES = 256 << 10


def return_what_is_freed() -> None:
    """Before the first thread starts: readings of long series come and go, and each arena keeps the largest."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * MAPPED_FROM_BYTES)


def collect_garbage_often() -> None:
    """When everything is loaded: the collector waits for a quarter of what lives before it looks at old objects.

    With the half million that imports make, closed connections would lie for minutes, their buffers with them.
    """
    gc.collect()
    gc.freeze()
