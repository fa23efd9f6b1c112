"""The web process: the ASGI application, with memory settings for a process that runs for weeks."""

import ctypes
import gc
import resource
from importlib import import_module

# From glibc's malloc.h; other C libraries have no mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
ARENAS = 2  # the default is one per thread, but Python's lock lets one thread allocate at a time
# Fixed: glibc would raise it with each large array, and the heap would never shrink.
MAPPED_FROM_BYTES = 256 << 10
MOST_OPEN_FILES = 65_536


def open_many_files() -> None:
    """Use as many files as the system grants: each page that is open takes one, each connection to a session two.

    The usual limit of 1,024 is for programs that call ``select``; this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))


def return_what_is_freed() -> None:
    """Limit malloc's arenas, each of which keeps its largest size. Call before the first thread starts."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * MAPPED_FROM_BYTES)


def collect_garbage_often() -> None:
    """Exclude the imported modules from garbage collection. Call when everything is loaded.

    The collector visits old objects only after they grew by a quarter. With half a million objects from imports,
    closed connections and their buffers would stay for minutes.
    """
    gc.collect()
    gc.freeze()


open_many_files()
return_what_is_freed()
gc.disable()  # collecting garbage during imports takes a fifth of their time: 0.4 s of a core
application = import_module("orchestrator.server.asgi").application
import_module("orchestrator.server.urls")  # load all views now, not at the first request
collect_garbage_often()
gc.enable()
