"""Writes the values of trackers into the metrics file of the attempt, as ``training.events`` defines its lines."""

import atexit
import json
import os
import threading
import time
from collections import deque
from typing import Any

from .gallery import Gallery
from .values import Numbers

FLUSH_EVERY_S = 0.25
MOST_PENDING = 100_000  # calls; limits memory while the disk hangs


class Lines:
    """Appends JSON lines to the metrics file of the attempt, as ``training.events`` defines them; a thread writes them."""

    def __init__(self, path: str, gallery: Gallery | None = None) -> None:
        self._path, self._gallery = path, gallery
        self.step = 0  # of the newest values, for calls without a step
        self.active = True
        self._pending: deque[tuple[str, int, float, Numbers]] = deque(maxlen=MOST_PENDING)
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._file = -1
        self._torn = False
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """In a forked child no thread writes, and the pending values are the parent's."""
        self.active = False

    def add(self, tracker: str, step: int, values: Numbers) -> None:
        self.step = step
        self._pending.append((tracker, step, time.time(), values))
        if self._thread is None:
            self._start()

    def wake(self) -> None:
        """Start the thread that writes, for values that are not numbers."""
        if self._thread is None:
            self._start()

    def announce(self, tracker: str) -> None:
        """Write at once that this tracker's values come this way; it writes a file of its own a moment later."""
        self._pending.append((tracker, -1, 0.0, {}))
        self.flush()

    def tell_total(self, trainer: str, steps: int) -> None:
        """Write at once how many steps a training will have."""
        self._pending.append((trainer, -1, 0.0, {"total_steps": steps}))
        self.flush()

    def flush(self) -> None:
        if not self.active or not self._writing.acquire(timeout=1.0):
            return
        try:
            self._write([self._pending.popleft() for _ in range(len(self._pending))])
            if self._gallery is not None:
                self._gallery.write()
        finally:
            self._writing.release()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="berth-tee", daemon=True)
        self._thread.start()
        atexit.register(self.flush)

    def _run(self) -> None:
        while True:
            time.sleep(FLUSH_EVERY_S)
            self.flush()

    def _write(self, entries: list[tuple[str, int, float, Numbers]]) -> None:
        text = b"".join(_line(*entry) for entry in entries)
        if not text:
            return
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            text = b"\n" * self._torn + text
            self._torn = os.write(self._file, text) < len(text)
        except OSError:  # the disk is full, as it is for the script's own files; the log says so
            self._torn = True


def _line(tracker: str, step: int, time_s: float, values: Numbers) -> bytes:
    numbers = {name: number for name, value in values.items() if (number := _number(value)) is not None}
    if values and not numbers:
        return b""
    head = {"tracker": tracker} if step < 0 else {"tracker": tracker, "step": step, "time": round(time_s, 3)}
    return json.dumps({**numbers, **head}, separators=(",", ":")).encode("ascii") + b"\n"


def _number(value: Any) -> int | float | None:
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
