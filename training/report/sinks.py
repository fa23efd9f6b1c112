"""Sinks of reported lines: a file, the console, or both."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

MOST_KEPT_BYTES = 4 << 20  # lines kept while the disk is full


class Viewer(Protocol):
    """Shows numbers to a person."""

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        """Show the newest values."""

    def close(self) -> None: ...


class Sink(Viewer, Protocol):
    """Takes the lines of the reporter's thread; never raises for a full disk."""

    def write(self, lines: list[bytes]) -> int:
        """Write whole lines, in order; return the number of lines dropped for good."""


class FileSink:
    """Appends to a file, one write per flush, so that several writers do not mix their lines.

    While the disk is full, up to 4 MiB of lines wait.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._waiting: list[bytes] = []
        self._torn = False

    def write(self, lines: list[bytes]) -> int:
        if self._file < 0:  # closed: the descriptor may be another file's by now
            return len(lines)
        self._waiting += lines
        text = b"\n" * self._torn + b"".join(self._waiting)  # ends the incomplete line of a short write
        try:
            written = os.write(self._file, text)
        except OSError:
            written = 0
        if written == len(text):
            self._waiting, self._torn = [], False
            return 0
        return self._keep_rest(written)

    def _keep_rest(self, written: int) -> int:
        done = written - self._torn
        if written:
            self._torn = False
        while self._waiting and done >= len(self._waiting[0]):
            done -= len(self._waiting.pop(0))
        self._torn = self._torn or done > 0
        dropped = 0
        if sum(map(len, self._waiting)) > MOST_KEPT_BYTES:
            dropped, self._waiting = len(self._waiting), []
        return dropped

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        """Do nothing: the server reads the file."""

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


class ConsoleSink:
    """Prints the newest step at most once per second, for runs outside Berth."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._shown_at = float("-inf")
        self._newest = ""

    def write(self, lines: list[bytes]) -> int:
        return 0

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        numbers = " ".join(f"{name} {value:.5g}" for name, value in values.items())
        self._newest = f"step {step} {numbers}\n"
        if time.monotonic() - self._shown_at >= self._every_s:
            self._print()

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._newest:
            sys.stdout.write(self._newest)
            sys.stdout.flush()
            self._shown_at, self._newest = time.monotonic(), ""


class LoggedFileSink(FileSink):
    """Appends to a file, and prints the newest step to the run's log.

    The file is written first, so that a reader of both recognises the printed numbers as known.
    """

    def __init__(self, path: Path, console: ConsoleSink) -> None:
        super().__init__(path)
        self._console = console
        self._newest: tuple[int, Mapping[str, int | float]] | None = None

    def write(self, lines: list[bytes]) -> int:
        dropped = super().write(lines)
        if self._newest is not None:
            self._console.show(*self._newest)
            self._newest = None
        return dropped

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        self._newest = step, values

    def close(self) -> None:
        super().close()
        self._console.close()
