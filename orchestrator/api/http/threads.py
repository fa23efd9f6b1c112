"""Threads for requests, which serve one after the other and keep their connection to the database."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.db import connections

MOST_IDLE = 4  # more would only hold memory: a connection's cache has up to 16 MiB


class KeptThreads:
    """A thread for each request that is being served; up to ``most_idle`` wait for the next one.

    Django starts two threads for each request, one for its views and one that waits for the end of the first, and
    opens a connection to the database in it. Together this takes a quarter of what a small request costs.
    """

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        self._most_idle = most_idle
        self._idle: list[_Thread] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Run what is synchronous in this block on one thread that runs nothing else."""
        thread = self._idle.pop() if self._idle else _Thread()
        try:
            async with ThreadSensitiveContext(executor=thread):
                yield
        finally:
            if thread.is_idle and len(self._idle) < self._most_idle:
                self._idle.append(thread)
            else:
                thread.end()


class _Thread(ThreadPoolExecutor):
    """One thread that knows whether it has finished its last call."""

    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="request")
        self._last: Future[Any] | None = None

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._last = super().submit(call, *args, **kwargs)
        return self._last

    @property
    def is_idle(self) -> bool:
        return self._last is None or self._last.done()

    def end(self) -> None:
        """Let the thread finish its call, close its connection and end; does not wait for it."""
        super().submit(connections.close_all)
        self.shutdown(wait=False)
