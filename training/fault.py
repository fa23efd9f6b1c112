"""What tells a training to save and leave."""

import os
import signal
from types import FrameType


class StopRequest:
    """Remembers SIGTERM (save and leave) and SIGUSR1 (save and go on) until the step has ended."""

    def __init__(self) -> None:
        self.stop = False
        self.save = False
        self._pid = os.getpid()
        self._before: dict[int, signal._HANDLER] = {}

    def listen(self) -> None:
        """Take over both signals; only the main thread may call it."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)

    def leave(self) -> None:
        """Give the signals back to whoever handled them before."""
        for number, handler in self._before.items():
            if handler is not None:  # None: it was not set from Python, and cannot be from here
                signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child must not outlive its SIGTERM
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGTERM:
            self.stop = True
        else:
            self.save = True
