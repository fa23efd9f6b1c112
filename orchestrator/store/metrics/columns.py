"""Columns of a metric writer: points that wait for the next flush, and open files."""

import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.metrics.journal import COLUMN

MOST_SEGMENTS = 64  # otherwise steps that jump back and forth would make one file a point
MOST_OPEN = 256
U32 = 1 << 32
INT64 = 1 << 63
LATEST_MS = 1 << 53


class Column:
    """Points of one series that wait for the next flush, by segment."""

    __slots__ = ("_base_ms", "_base_step", "_segment", "ms", "new_segments", "pending", "steps", "values")

    def __init__(self, bases: list[tuple[int, int]]) -> None:
        self._segment = len(bases) - 1
        self._base_step, self._base_ms = bases[-1]
        self.steps: list[int] = []
        self.ms: list[int] = []
        self.values: list[float] = []
        self.pending: list[tuple[int, NDArray[np.void]]] = []
        self.new_segments: list[tuple[int, tuple[int, int]]] = []

    def add(self, step: int, ms: int, value: float) -> bool:
        """Add a point; False if it does not fit."""
        step -= self._base_step
        ms -= self._base_ms
        if not (0 <= step < U32 and 0 <= ms < U32):
            step, ms = step + self._base_step, ms + self._base_ms
            if not (-INT64 <= step < INT64 and ms < LATEST_MS) or self._segment + 1 >= MOST_SEGMENTS:
                return False
            self._next_segment(step, ms)
            step, ms = step - self._base_step, ms - self._base_ms
        self.steps.append(step)
        self.ms.append(ms)
        self.values.append(value)
        return True

    def take(self) -> list[tuple[int, NDArray[np.void]]]:
        self._close_part()
        taken, self.pending = self.pending, []
        return taken

    def _next_segment(self, step: int, ms: int) -> None:
        self._close_part()
        self._segment += 1
        # Put the first step in the middle, so that steps on either side fit this segment.
        self._base_step = max(step - U32 // 2, -INT64)
        self._base_ms = max(ms - U32 // 2, 0)
        self.new_segments.append((self._segment, (self._base_step, self._base_ms)))

    def _close_part(self) -> None:
        if not self.steps:
            return
        records = np.empty(len(self.steps), COLUMN)
        records["step"], records["ms"], records["value"] = self.steps, self.ms, self.values
        self.pending.append((self._segment, records))
        self.steps, self.ms, self.values = [], [], []


class OpenFiles:
    """Columns opened for appending; closes the least recently used."""

    def __init__(self) -> None:
        self._fds: OrderedDict[Path, int] = OrderedDict()

    def open(self, path: Path) -> tuple[int, bool]:
        """The descriptor, and whether the file was just opened and empty."""
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd, False
        if len(self._fds) >= MOST_OPEN:
            os.close(self._fds.popitem(last=False)[1])
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._fds[path] = fd
        return fd, os.fstat(fd).st_size == 0

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
