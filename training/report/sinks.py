"""Where reported lines go."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

MOST_KEPT_BYTES = 4 << 20  # what waits for a full disk to have room again


class Viewer(Protocol):
    """Shows numbers to a person."""

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        """Tell a person the newest values."""

    def close(self) -> None: ...


class Sink(Viewer, Protocol):
    """Takes what the reporter's thread flushes; never raises for a full disk."""

    def write(self, lines: list[bytes]) -> int:
        """Write whole lines, in order; returns how many were given up for good."""


class FileSink:
    """Appends to a file, each flush in one write, so that several writers do not mix their lines.

    What a full disk did not take waits, up to 4 MiB.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._waiting: list[bytes] = []
        self._torn = False

    def write(self, lines: list[bytes]) -> int:
        self._waiting += lines
        text = b"\n" * self._torn + b"".join(self._waiting)  # ends the half line of a short write
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
        given_up = 0
        if sum(map(len, self._waiting)) > MOST_KEPT_BYTES:
            given_up, self._waiting = len(self._waiting), []
        return given_up

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        """Nothing: the server reads the file."""

    def close(self) -> None:
        os.close(self._file)


class ConsoleSink:
    """Prints the newest step at most once a second, for runs outside Berth."""

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
    """Appends to a file, and also prints for whoever reads the run's log.

    The file is written first: a reader of both knows by then that the printed numbers are not news.
    """

    def __init__(self, path: Path, console: ConsoleSink) -> None:
        super().__init__(path)
        self._console = console
        self._newest: tuple[int, Mapping[str, int | float]] | None = None

    def write(self, lines: list[bytes]) -> int:
        given_up = super().write(lines)
        if self._newest is not None:
            self._console.show(*self._newest)
            self._newest = None
        return given_up

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        self._newest = step, values

    def close(self) -> None:
        super().close()
        self._console.close()
