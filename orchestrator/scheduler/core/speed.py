"""What makes a pass over a long queue fast and would surprise a reader elsewhere, with its measured gain."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector: a pass makes tens of thousands of objects and no cycles.

    Where the collector is off already it stays off, so threads may overlap here.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
