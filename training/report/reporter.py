"""Reporter: takes values within microseconds; a thread reads and writes them later."""

import atexit
import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

from training import events
from training.media import Media, is_media
from training.report.sinks import ConsoleSink, FileSink, LoggedFileSink, Sink, Viewer

FLUSH_EVERY_S = 0.25
HEARTBEAT_EVERY_S = 1.0
CLOSE_WITHIN_S = 1.0
MOST_PENDING = 200_000  # steps; limits memory while the disk hangs

_RESERVED_NAMES = events.RESERVED - {events.TOTAL_STEPS}
_Entry = tuple[int, float, dict[str, Any]]


class Reporter:
    """Sends values of steps to Berth; the training never waits for it.

    A value is a number or a tensor of one element, on any device.  Tensors are copied on their device and
    read in the background, so changing one afterwards is safe.  Only rank 0 writes, unless ``active`` is
    given.  Without ``file`` and ``BERTH_METRICS_FILE``, the newest step is printed at most once per second;
    with ``prints``, set before the first report, it is printed in addition to the file.  Pending lines
    are written at exit and on SIGTERM.
    """

    def __init__(self, file: Path | None = None, *, active: bool | None = None) -> None:
        self.active = os.environ.get("RANK", "0") == "0" if active is None else active
        self.prints = False
        self._file = file
        self._sink: Sink | None = None
        self._more_sinks: list[Viewer] = []
        self._pending: deque[_Entry] = deque()
        self._lines: deque[bytes] = deque()  # events and total steps
        self._step = 0
        self._beat_s = 0.0
        self.beats = 0  # heartbeats of the training thread
        self._alive_s = 0.0  # wall time of the newest line that counts as a heartbeat
        self._dropped = 0
        self._unreadable: set[str] = set()
        self._media: Media | None = None  # made by the first image, histogram, table or text
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add_sink(self, sink: Viewer) -> None:
        """Add a sink for every reported number; the reporter's thread calls it and closes it."""
        self._more_sinks.append(sink)

    def report(self, step: int | None = None, **values: object) -> None:
        """Report values of a step; without ``step``, of the last one reported.

        ``total_steps=`` is the last step of the run.  ``image=``, ``histogram=``, ``table=`` and ``text=`` take one value, or
        values by name, for the job's page.  Never blocks and never raises: a value that is not a single number becomes
        an ``unreadable_value`` event, and of what cannot be kept the log has a line.
        """
        if not self.active:
            return
        if step is not None:
            self._step = step
        for name, value in list(values.items()):
            if type(value) is float:
                continue
            if is_media(name, value):
                self._take_media(name, values.pop(name))
            elif hasattr(value, "detach"):
                values[name] = value.detach().clone()
        if len(self._pending) >= MOST_PENDING:
            self._dropped += 1
            return
        self._pending.append((self._step, time.time(), values))
        if self._thread is None:
            self._start()

    def _take_media(self, kind: str, value: object) -> None:
        if self._media is None:
            self._media = Media()
        self._media.take(kind, value, self._step, time.time())

    def heartbeat(self) -> None:
        """Report that the training thread is alive while no step ends (validation)."""
        self._beat_s = time.time()
        self.beats += 1
        if self._thread is None and self.active:
            self._start()

    def event(self, kind: str, **fields: events.Value) -> None:
        """Report an event; ``training.events`` defines the kinds."""
        self._add_line(events.event_line(kind, fields))

    def total_steps(self, total_steps: int) -> None:
        self._add_line(events.total_steps_line(total_steps))

    def flush(self, timeout_s: float = 1.0) -> bool:
        """Write pending lines; return False if another flush took longer than ``timeout_s``."""
        if not self.active or not self._writing.acquire(timeout=timeout_s):
            return False
        try:
            if self.active:  # else it was closed while we waited
                self._write_pending()
        finally:
            self._writing.release()
        return True

    def close(self) -> None:
        """Write pending lines and stop the thread; later reports are lost."""
        if self._ended.is_set():
            return
        self._ended.set()
        self.flush()
        self.active = False
        # A thread that still writes, to a disk that hangs, keeps its file.
        if self._writing.acquire(timeout=CLOSE_WITHIN_S):
            try:
                for sink in (self._sink, *self._more_sinks):
                    if sink is not None:
                        sink.close()
            finally:
                self._writing.release()

    def _add_line(self, line: bytes) -> None:
        if not self.active:
            return
        self._lines.append(line)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        path = self._file or os.environ.get(events.METRICS_FILE_VARIABLE)
        self._sink = _open_sink(Path(path) if path else None, prints=self.prints)
        self._thread = threading.Thread(target=self._run, name="berth-report", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        # A forked data-loader worker has a copy of the pending lines, and must not write them again.
        os.register_at_fork(after_in_child=self._leave_to_parent)
        self._flush_before_sigterm()

    def _leave_to_parent(self) -> None:
        self.active = False
        self._ended.set()

    def _flush_before_sigterm(self) -> None:
        """If SIGTERM has no handler, install one that writes the lines and then dies of it."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def write_and_die(number: int, frame: FrameType | None) -> None:
            self.flush()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, write_and_die)

    def _run(self) -> None:
        while not self._ended.wait(FLUSH_EVERY_S):
            self.flush()

    def _write_pending(self) -> None:
        if self._sink is None:
            return
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        entries = [self._pending.popleft() for _ in range(len(self._pending))]
        for step, time_s, values in _read_tensors(entries):
            numbers = self._only_numbers(values, lines)
            lines.append(events.metric_line(step, time_s, numbers))
            self._alive_s = time_s
            self._sink.show(step, numbers)
            for viewer in self._more_sinks:
                viewer.show(step, numbers)
        if self._beat_s - self._alive_s >= HEARTBEAT_EVERY_S:
            self._alive_s = self._beat_s
            lines.append(events.heartbeat_line(self._beat_s))
        if self._media is not None:
            self._write_media(self._media, lines)
        if self._dropped:
            lines.append(
                events.event_line(events.DROPPED_EVENT, {"lines": self._dropped, "reason": "disk too slow"})
            )
            self._dropped = 0
        if lines:
            self._dropped += self._sink.write(lines)

    def _only_numbers(self, values: dict[str, Any], lines: list[bytes]) -> dict[str, int | float]:
        numbers: dict[str, int | float] = {}
        for name, value in values.items():
            reason = "the name is reserved" if name in _RESERVED_NAMES else ""
            try:
                numbers[name] = value if type(value) in (int, float) else float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                reason = str(error)[:200]
            if reason:
                numbers.pop(name, None)
                self._report_unreadable(name, reason, lines)
        return numbers

    def _write_media(self, media: Media, lines: list[bytes]) -> None:
        """Write pictures and the like; the log says once for each name why one was not kept."""
        media.write()
        for name, reason in media.problems():
            if name not in self._unreadable:
                sys.stderr.write(f"Berth did not keep {name!r}: {reason}.\n")
            self._report_unreadable(name, reason, lines)

    def _report_unreadable(self, name: str, reason: str, lines: list[bytes]) -> None:
        if name not in self._unreadable:
            self._unreadable.add(name)
            lines.append(events.event_line(events.UNREADABLE_EVENT, {"name": name, "reason": reason}))


def _read_tensors(entries: list[_Entry]) -> list[_Entry]:
    """Replace tensors on accelerators by their values, with one transfer per device.

    Separate transfers would each wait for the kernels queued before them.
    """
    by_device: dict[Any, list[tuple[dict[str, Any], str]]] = {}
    for _, _, values in entries:
        for name, value in values.items():
            if hasattr(value, "detach") and value.device.type != "cpu" and value.numel() == 1:
                by_device.setdefault(value.device, []).append((values, name))
    if by_device:
        import torch

        for places in by_device.values():
            tensors = [values[name].reshape(()).double() for values, name in places]
            for (values, name), number in zip(places, torch.stack(tensors).tolist(), strict=True):
                values[name] = number
    return entries


def _open_sink(path: Path | None, *, prints: bool) -> Sink:
    if path is None:
        return ConsoleSink()
    try:
        return LoggedFileSink(path, ConsoleSink()) if prints else FileSink(path)
    except OSError as error:
        sys.stderr.write(f"Values are only printed: {path} cannot be written ({error.strerror}).\n")
        return ConsoleSink()


_default: Reporter | None = None


def default_reporter() -> Reporter:
    """Return the reporter of this process, created at its first use."""
    global _default
    if _default is None:
        _default = Reporter()
    return _default


def report(step: int | None = None, **values: object) -> None:
    """Report values of a step to Berth; see ``Reporter.report``."""
    (_default or default_reporter()).report(step, **values)


def heartbeat() -> None:
    """Report that the training is alive although no step has ended; see ``Reporter.heartbeat``."""
    default_reporter().heartbeat()


def event(kind: str, **fields: events.Value) -> None:
    """Report an event; see ``Reporter.event``."""
    default_reporter().event(kind, **fields)
