"""The lock that allows one agent per home, and the process that holds it."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from berth.shared.words import server_command
from orchestrator.exceptions import Conflict
from orchestrator.store.layout import Home
from orchestrator.supervisor.linux.processes import ProcessId, from_record, identify, is_alive, send_signal
from orchestrator.supervisor.protocol.records import read_record, write_record

# Longer than any turn of a working agent, even on a busy machine with a slow database.
SILENT_AFTER_S = 60.0
END_WITHIN_S = 5.0


class AgentRunning(Conflict):
    """Another agent holds the lock of this home."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The agent that holds the lock."""

    process: ProcessId | None  # None: it has not written its record yet
    since: float | None  # wall clock, seconds
    silent_s: float | None  # since its last heartbeat

    @property
    def works(self) -> bool:
        return self.silent_s is None or self.silent_s <= SILENT_AFTER_S

    def __str__(self) -> str:
        """``pid 12, since 2026-11-22 11:03:09 UTC, last heartbeat 0.3 s ago``."""
        parts = [f"pid {self.process.pid}" if self.process else "its pid is not known yet"]
        if self.since is not None:
            parts.append(f"since {datetime.fromtimestamp(self.since, UTC):%Y-%m-%d %H:%M:%S} UTC")
        if self.silent_s is not None:
            parts.append(f"last heartbeat {self.silent_s:.1f} s ago")
        return ", ".join(parts)

    def end(self) -> bool:
        """Kill a holder that does not respond; False if it is not proven dead within a few seconds.

        By SIGKILL: it has not responded for a minute, and a stopped process reacts to nothing else.
        """
        if self.process is None:
            return False
        send_signal(self.process, signal.SIGKILL)
        deadline_s = time.monotonic() + END_WITHIN_S
        while is_alive(self.process) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return not is_alive(self.process)


class Heartbeat:
    """The time of the loop's last turn, in monotonic nanoseconds; written in place, without fsync."""

    def __init__(self, home: Home) -> None:
        self._fd = os.open(_heartbeat(home), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def beat(self) -> None:
        if self._fd >= 0:  # once it is closed, the descriptor may be another file's
            os.pwrite(self._fd, b"%020d\n" % time.monotonic_ns(), 0)

    def close(self) -> None:
        """Close the file; later beats have no effect."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


@contextmanager
def held(home: Home) -> Iterator[Heartbeat]:
    """Hold the lock; the caller beats once per turn.

    Raises:
        AgentRunning: another agent holds it; the sentence says which, and what to do if it does not respond.
    """
    home.services.mkdir(mode=0o700, exist_ok=True)
    with _lock(home).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AgentRunning(_refusal(home)) from None
        heartbeat = Heartbeat(home)
        heartbeat.beat()  # before the record, so that an earlier agent's heartbeat is not taken for ours
        process = identify(os.getpid())
        assert process is not None  # noqa: S101  # we run
        write_record(_record(home), {**process.to_record(), "since": time.time()})
        try:
            yield heartbeat
        finally:
            heartbeat.close()


def holder(home: Home) -> LockHolder | None:
    """The agent that holds the lock now; None if none does."""
    if not _is_locked(_lock(home)):
        return None
    record = read_record(_record(home)) or {}
    process = from_record(record)
    if process is None or not is_alive(process):  # an earlier agent's record; the current one is starting
        return LockHolder(None, None, None)
    since = record.get("since")
    return LockHolder(process, since if isinstance(since, float) else None, _silence_s(home))


def silent_holder(home: Home) -> LockHolder | None:
    """The holder of the lock if it does not respond."""
    current = holder(home)
    return None if current is None or current.works else current


def _refusal(home: Home) -> str:
    current = holder(home)
    if current is None:  # it ended while we looked
        return f"An agent ran for {home.root} until this moment; start again."
    text = f"An agent already runs for {home.root} ({current})."
    if current.works or current.process is None:
        return text
    return (
        f"{text} It does not work: `{server_command('up')}` ends it, as does `kill -9 {current.process.pid}`."
    )


def _silence_s(home: Home) -> float | None:
    try:
        beat_ns = int(_heartbeat(home).read_bytes())
    except (OSError, ValueError):
        return None
    return max(0.0, (time.monotonic_ns() - beat_ns) / 1e9)


def _is_locked(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _lock(home: Home) -> Path:
    return home.root / "agent.lock"


def _record(home: Home) -> Path:
    return home.services / "agent.holder"


def _heartbeat(home: Home) -> Path:
    return home.services / "agent.heartbeat"
