"""Threads for calls that may hang."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A call in a lane."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self._done = threading.Event()
        self._result: Result | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001 - raised again by wait()
            self._error = error
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> Result:
        """The result of the call; raises its error.

        Raises:
            TimeoutError: the call has not returned; it continues in its thread.
        """
        if not self._done.wait(max(0.0, timeout_s)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # None only where Result allows it


class Lane:
    """One thread that runs calls in order; a call that hangs blocks only its own lane."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._last: Pending[object] | None = None
        # Daemon: a driver that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def stuck(self) -> bool:
        """Whether an earlier call has not returned."""
        return self._last is not None and not self._last.done

    def start(self, call: Callable[[], Result]) -> Pending[Result]:
        pending = Pending(call)
        self._last = pending  # type: ignore[assignment]  # only .done is read
        self._calls.put(pending.run)
        return pending

    def close(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
