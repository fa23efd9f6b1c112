"""Runs a program for as long as its answer is wanted, and reads no more of its output than has room."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KEPT_ERRORS_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_LOOKS_EVERY_S = 1.0


class NotWanted(Exception):
    """Nothing waits for the answer of the program any more; it was killed."""


class TooLong(Exception):
    """The program wrote more output than is read; it was killed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a program is killed before its end."""

    until_s: float  # of the monotonic clock
    output_bytes: int
    is_wanted: Callable[[], bool]  # asked about once a second


@dataclass(slots=True)
class Ended:
    """A program that ended by itself."""

    status: int = 0
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)  # their end, shortened to ``KEPT_ERRORS_BYTES``


def run(
    words: Sequence[str], limits: Limits, *, cwd: Path, env: Mapping[str, str], stdin: Path | None = None
) -> Ended:
    """Run a program to its end; neither it nor its children outlive the call.

    Args:
        stdin: the file that it reads; None for an empty one.

    Raises:
        NotWanted: ``is_wanted`` said so.
        TooLong: its output is longer than the limit.
        TimeoutError: it did not end in time.
        OSError: it cannot be started.
    """
    with (stdin or Path(os.devnull)).open("rb") as file:
        process = subprocess.Popen(  # noqa: S603 -- the caller's words, without a shell
            list(words),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    with process:
        try:
            ended = _read(process, limits)
            process.wait(max(0.0, limits.until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            _kill(process)
    ended.status = process.returncode
    return ended


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the program's session: git's helpers hold its pipes open without it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended


def _read(process: "subprocess.Popen[bytes]", limits: Limits) -> Ended:
    """What the program writes until it closes both of its pipes."""
    ended = Ended()
    look_at_s = 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, ended.output)  # type: ignore[arg-type]  # a pipe
        selector.register(process.stderr, selectors.EVENT_READ, ended.errors)  # type: ignore[arg-type]
        while selector.get_map():
            now_s = time.monotonic()
            if now_s > limits.until_s:
                raise TimeoutError
            if now_s >= look_at_s:
                if not limits.is_wanted():
                    raise NotWanted
                look_at_s = now_s + _LOOKS_EVERY_S
            for key, _ in selector.select(_LOOKS_EVERY_S):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            del ended.errors[:-KEPT_ERRORS_BYTES]
            if len(ended.output) > limits.output_bytes:
                raise TooLong
    return ended
