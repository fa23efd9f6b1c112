"""Judges from its folder alone whether an attempt lives (docs/protocol.md, rule 5)."""

import enum
import fcntl
import os
import signal
import time
from dataclasses import dataclass

from orchestrator.supervisor.linux.processes import (
    ProcessId,
    boot_id,
    from_record,
    identify,
    is_alive,
    send_signal,
    with_nonce,
)
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import Record, heartbeat_age_s, read_record

STALE_HEARTBEAT_S = 30.0


class Liveness(enum.StrEnum):
    NEVER_STARTED = "never_started"  # no supervisor took the lock and wrote its identity
    ALIVE = "alive"
    UNKNOWN = "unknown"  # the lock is held, but the heartbeat is old: stopped, or its host hangs
    ENDED = "ended"  # has an exit record; all processes are gone
    DYING = "dying"  # the supervisor is gone, but processes of the run remain
    LOST = "lost"  # proven dead, without an exit record


@dataclass(frozen=True, slots=True)
class Evidence:
    """What folder and process table show at one moment."""

    has_exit_record: bool  # with this attempt's number and nonce
    lock_held: bool
    has_identity: bool  # supervisor.json was written
    same_boot: bool  # the identity is from the current boot
    heartbeat_age_s: float | None
    processes_left: bool


def judge(evidence: Evidence) -> Liveness:
    if evidence.has_exit_record:
        return Liveness.ENDED
    if evidence.lock_held:
        stale = evidence.heartbeat_age_s is not None and evidence.heartbeat_age_s > STALE_HEARTBEAT_S
        return Liveness.UNKNOWN if stale else Liveness.ALIVE
    if not evidence.has_identity:
        return Liveness.NEVER_STARTED
    return Liveness.DYING if evidence.same_boot and evidence.processes_left else Liveness.LOST


def liveness(folder: AttemptFolder, attempt: Record | None = None) -> Liveness:
    """Judge the attempt in ``folder``.  Costs 0.1 ms while it lives, and a scan of all processes once it is gone.

    Args:
        attempt: number and nonce, where the launcher may have died before it wrote them into the folder.
    """
    return judge(_gather(folder, attempt or {}))


def end_leftovers(folder: AttemptFolder) -> int:
    """SIGKILL the processes that a dead supervisor left behind; returns their number.

    Only for an attempt that is DYING: a living supervisor alone sends signals.
    """
    record = read_record(folder.supervisor) or {}
    leftovers = [process for pid in _of_nonce(record) if (process := identify(pid)) is not None]
    init = _init(folder, record)
    if init is not None and is_alive(init):
        leftovers.insert(0, init)
    return sum(send_signal(process, signal.SIGKILL) for process in leftovers)


def _gather(folder: AttemptFolder, attempt: Record) -> Evidence:
    # A supervisor takes the lock, writes its identity, and writes the exit record before it frees the lock.  Reading
    # in this order never mistakes a supervisor that starts or ends right now for a dead one.
    launch, identity = read_record(folder.launch) or attempt, read_record(folder.supervisor)
    held = _lock_is_held(folder)
    ended = _is_of(read_record(folder.exit), launch)
    supervisor = from_record(identity)
    same_boot = supervisor is not None and supervisor.boot_id == boot_id()
    may_have_processes = same_boot and not held and not ended and identity is not None
    return Evidence(
        has_exit_record=ended,
        lock_held=held,
        has_identity=identity is not None,
        same_boot=same_boot,
        heartbeat_age_s=_silence_s(folder) if held else None,
        processes_left=may_have_processes and _has_processes(folder, identity or {}),
    )


def _is_of(record: Record | None, launch: Record) -> bool:
    return record is not None and all(record.get(name) == launch.get(name) for name in ("number", "nonce"))


def _lock_is_held(folder: AttemptFolder) -> bool:
    """Test the lock by taking it for an instant; a supervisor that starts just then retries."""
    try:
        fd = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _silence_s(folder: AttemptFolder) -> float | None:
    """Seconds since the last heartbeat, or since the lock file was created if there was none yet."""
    age_s = heartbeat_age_s(folder)
    if age_s is not None:
        return age_s
    try:
        return max(0.0, time.time() - folder.lock.stat().st_mtime)
    except FileNotFoundError:
        return None


def _has_processes(folder: AttemptFolder, identity: Record) -> bool:
    init = _init(folder, identity)
    return (init is not None and is_alive(init)) or bool(_of_nonce(identity))


def _init(folder: AttemptFolder, identity: Record) -> ProcessId | None:
    row = (read_record(folder.sandbox) or {}).get("init")
    return from_record({"boot_id": identity.get("boot_id"), **row}) if isinstance(row, dict) else None


def _of_nonce(identity: Record) -> list[int]:
    nonce = identity.get("nonce")
    return with_nonce(nonce) if isinstance(nonce, str) and nonce else []
