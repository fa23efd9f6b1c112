"""A request to stop that a signal handler can make at any moment."""

import faulthandler
import os
import select
import signal
from types import FrameType
from typing import Protocol

END_WITHIN_S = 15.0


class Stopping(Protocol):
    """What a loop checks: a ``StopRequest``, or an event if no signal handler sets it."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class StopRequest:
    """Like a ``threading.Event`` for the loops that wait for it, but safe to set in a signal handler.

    An event is not safe: its ``set`` takes a lock that ``wait`` holds for a few microseconds. A handler that runs in
    the waiting thread at that moment deadlocks, and with it every other thread that checks the event.
    """

    def __init__(self) -> None:
        self._asked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self._asked, 1)

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most this many seconds for the request; return whether it was made."""
        asked = select.poll()
        asked.register(self._asked, select.POLLIN)
        return bool(asked.poll(None if timeout is None else max(0.0, timeout) * 1000))


def on_signals(stopping: StopRequest, *, end_within_s: float | None = None) -> None:
    """Make SIGTERM and SIGINT set the request.

    Args:
        end_within_s: end the process by force this long after the signal, so that neither a turn that hangs nor a
            thread that is not joined keeps it alive. The stack of each thread is printed to the standard error.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()
        if end_within_s is not None:
            # This runs in a C thread that needs no interpreter lock.
            faulthandler.dump_traceback_later(end_within_s, exit=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
