"""The collection of garbage, paused while a long queue is looked at."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """A long queue makes tens of thousands of objects and no cycle: to look for garbage among them, again and
    again, would be a sixth of a pass.  Who finds the collection off leaves it off, so threads may meet here.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
