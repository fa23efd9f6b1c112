"""A request to stop that a signal handler can make at any moment."""

import faulthandler
import os
import select
import signal
from types import FrameType
from typing import Protocol

END_WITHIN_S = 15.0


class Stopping(Protocol):
    """What a loop asks: a ``StopRequest``, or an event where no signal handler sets it."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class StopRequest:
    """What a ``threading.Event`` offers to the loops that wait for it, safe to set in a signal handler.

    An event is not: its ``set`` takes a lock that ``wait`` holds for a few microseconds. A handler that runs in the
    waiting thread just then waits for its own thread for ever, and every other thread that asks the event with it.
    """

    def __init__(self) -> None:
        self._asked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self._asked, 1)

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the request is made, at most this many seconds; whether it is made."""
        asked = select.poll()
        asked.register(self._asked, select.POLLIN)
        return bool(asked.poll(None if timeout is None else max(0.0, timeout) * 1000))


def on_signals(stopping: StopRequest, *, end_within_s: float | None = None) -> None:
    """Make SIGTERM and SIGINT set the request.

    Args:
        end_within_s: end the process by force this long after the signal. Where each thread is then goes to the
            standard error. A turn that hangs, or a thread that is not joined, cannot keep the process alive.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()
        if end_within_s is not None:
            # A thread in C that needs no lock of the interpreter's.
            faulthandler.dump_traceback_later(end_within_s, exit=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
