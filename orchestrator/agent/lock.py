"""The lock that makes the agent the only one of its home, and who holds it."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.exceptions import Conflict
from orchestrator.store.layout import Home
from orchestrator.supervisor.processes import ProcessId, from_record, identify, is_alive, send_signal
from orchestrator.supervisor.records import read_record, write_record

# Longer than any turn of an agent that works, on a busy machine and with a slow database too.
SILENT_AFTER_S = 60.0
END_WITHIN_S = 5.0


class AgentRunning(Conflict):
    """Another agent holds the lock of this home."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The agent that holds the lock."""

    process: ProcessId | None  # None: it has not written yet who it is
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
        """End a holder that does not work; False where that is not proven dead within a few seconds.

        SIGKILL: it did not heed anything for a minute, and a stopped process heeds nothing else.
        """
        if self.process is None:
            return False
        send_signal(self.process, signal.SIGKILL)
        deadline_s = time.monotonic() + END_WITHIN_S
        while is_alive(self.process) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return not is_alive(self.process)


class Heartbeat:
    """Written in place at each turn of the loop, without fsync: monotonic nanoseconds."""

    def __init__(self, home: Home) -> None:
        self._fd = os.open(_heartbeat(home), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def beat(self) -> None:
        os.pwrite(self._fd, b"%020d\n" % time.monotonic_ns(), 0)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def held(home: Home) -> Iterator[Heartbeat]:
    """Hold the lock; the caller beats at each of its turns.

    Raises:
        AgentRunning: another agent holds it; the sentence says who, and what to do where it does not work.
    """
    home.services.mkdir(mode=0o700, exist_ok=True)
    with _lock(home).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AgentRunning(_refusal(home)) from None
        heartbeat = Heartbeat(home)
        heartbeat.beat()  # before the record: the age of an earlier agent's must not be taken for ours
        process = identify(os.getpid())
        assert process is not None  # noqa: S101  # we run
        write_record(_record(home), {**process.to_record(), "since": time.time()})
        try:
            yield heartbeat
        finally:
            heartbeat.close()


def holder(home: Home) -> Holder | None:
    """Who holds the lock now; None where nobody does."""
    if not _is_locked(_lock(home)):
        return None
    record = read_record(_record(home)) or {}
    process = from_record(record)
    if process is None or not is_alive(process):  # a record of an earlier agent; the present one just begins
        return Holder(None, None, None)
    since = record.get("since")
    return Holder(process, since if isinstance(since, float) else None, _silence_s(home))


def silent_holder(home: Home) -> Holder | None:
    """The holder of the lock where it does not work."""
    found = holder(home)
    return None if found is None or found.works else found


def _refusal(home: Home) -> str:
    found = holder(home)
    if found is None:  # it ended while we looked
        return f"An agent ran for {home.root} until this moment; start again."
    text = f"An agent already runs for {home.root} ({found})."
    if found.works or found.process is None:
        return text
    return f"{text} It does not work: `make up` ends it, as does `kill -9 {found.process.pid}`."


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
