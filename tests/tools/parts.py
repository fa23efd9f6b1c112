"""Parts of one verdict, beside each other: each part's output stays together, and a failure hides no other part."""

import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

BEAT_S = 30.0
TAIL_LINES = 3  # of a part that passed
CANNOT_START = 127  # as a shell says it


@dataclass(frozen=True)
class Part:
    """A command whose exit status is one part of the verdict."""

    name: str
    command: Sequence[object]
    environment: Mapping[str, str] | None = None  # None: ours


@dataclass(frozen=True)
class Outcome:
    name: str
    status: int
    took_s: float
    log: Path

    def line(self) -> str:
        verdict = "ok" if self.status == 0 else f"FAILED (exit status {self.status})"
        return f"{self.name:<12}{verdict:<28}{self.took_s:6.0f} s   {self.log}"


@dataclass
class Lanes:
    """Runs lanes of parts beside each other; the parts of one lane one after the other, whatever became of the last.

    Args:
        folder: for the whole output of each part.
        beat_s: how often to say what is still running.
    """

    folder: Path
    root: Path
    beat_s: float = BEAT_S
    outcomes: list[Outcome] = field(default_factory=list)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _stopped: bool = False
    _began_s: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, lanes: Sequence[Sequence[Part]]) -> int:
        """Run every part and print the verdict; the exit status for all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        threads = [threading.Thread(target=self._run_lane, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        try:
            self._wait(threads)
        except BaseException:
            self.stop()
            raise
        finally:
            for thread in threads:
                thread.join()
        self.outcomes.sort(key=lambda outcome: outcome.status != 0)
        say("\n" + "\n".join(outcome.line() for outcome in self.outcomes))
        expected = sum(len(lane) for lane in lanes)
        return int(len(self.outcomes) < expected or any(outcome.status for outcome in self.outcomes))

    def stop(self) -> None:
        """End what runs and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running.values():
                process.terminate()

    def _wait(self, threads: Sequence[threading.Thread]) -> None:
        beat_s = time.monotonic() + self.beat_s
        while any(thread.is_alive() for thread in threads):
            next(thread for thread in threads if thread.is_alive()).join(0.2)
            if time.monotonic() >= beat_s:
                beat_s += self.beat_s
                self._say_what_runs()

    def _run_lane(self, lane: Sequence[Part]) -> None:
        for part in lane:
            if self._stopped:
                return
            log = self.folder / f"{part.name}.log"
            began_s = time.monotonic()
            with log.open("wb") as output:
                status = self._run_part(part, output)
            self._end(Outcome(part.name, status, time.monotonic() - began_s, log))

    def _run_part(self, part: Part, output: BinaryIO) -> int:
        try:
            with self._lock:
                process = self._running[part.name] = subprocess.Popen(
                    [str(word) for word in part.command],
                    cwd=self.root,
                    env=part.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:
            output.write(f"{part.command[0]} cannot be started: {error}\n".encode())
            return CANNOT_START
        return process.wait()

    def _end(self, outcome: Outcome) -> None:
        lines = outcome.log.read_text(errors="replace").rstrip().splitlines()
        shown = lines if outcome.status else lines[-TAIL_LINES:]
        with self._lock:
            self._running.pop(outcome.name, None)
            self.outcomes.append(outcome)
            say("\n".join([f"== {outcome.line()}", *shown]))

    def _say_what_runs(self) -> None:
        with self._lock:
            running = [f"{name} {_last_line(self.folder / f'{name}.log')}" for name in self._running]
        say(f"-- {time.monotonic() - self._began_s:.0f} s: {'; '.join(running)}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _last_line(log: Path) -> str:
    with log.open("rb") as lines:
        lines.seek(max(0, log.stat().st_size - 400))
        ended = lines.read().decode(errors="replace").rstrip().splitlines()
    return ended[-1][-60:].strip() if ended else "has written nothing yet"
