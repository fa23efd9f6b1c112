"""Reading logs beside the event loop: a few threads for all who read, and none for who has left."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

READERS = 3  # a log of the largest size takes one of them for about a second; others wait for their turn
_readers = ThreadPoolExecutor(READERS, thread_name_prefix="log reader")


def read_in_turn(read: Callable[[], T]) -> T:
    """What ``read`` returns; for a view, which has a thread of its own to wait in."""
    return _readers.submit(read).result()


async def read_beside(read: Callable[[], T]) -> T:
    """What ``read`` returns; for the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_readers, read)
