"""Attempt folders as supervisors leave them, written by hand."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings

from orchestrator.models import Attempt
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import Heartbeat, write_record


def make_folder(attempt: Attempt) -> AttemptFolder:
    """What the launcher leaves."""
    folder: AttemptFolder = settings.HOME.job(attempt.job_id).attempt(attempt.number)
    for path in (folder.root, folder.logs, folder.orders):
        path.mkdir(parents=True, exist_ok=True)
    write_record(folder.launch, {"number": attempt.number, "nonce": attempt.nonce})
    folder.metrics.touch()
    return folder


def write_exit(attempt: Attempt, kind: str = "ok", **fields: Any) -> None:
    folder = make_folder(attempt)
    record = {
        "number": attempt.number,
        "nonce": attempt.nonce,
        "kind": kind,
        "detail": "Ended.",
        "run_s": 3.0,
    }
    write_record(folder.exit, {**record, **fields})


def write_identity(attempt: Attempt, *, alive_for_s: float = 0.0, boot: str | None = None) -> None:
    """Who the supervisor is; its process need not exist."""
    ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - alive_for_s) * os.sysconf("SC_CLK_TCK")
    identity = {"boot_id": boot or boot_id(), "pid": 2**22 - 1, "start_ticks": int(ticks)}
    write_record(
        make_folder(attempt).supervisor, {**identity, "nonce": attempt.nonce, "number": attempt.number}
    )


@contextmanager
def living(attempt: Attempt, *, silent_for_s: float = 0.0) -> Iterator[AttemptFolder]:
    """A supervisor that holds the lock and last showed life ``silent_for_s`` ago."""
    folder = make_folder(attempt)
    with folder.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Heartbeat(folder).beat()
        beat_ns = time.monotonic_ns() - int(silent_for_s * 1e9)
        folder.heartbeat.write_bytes(b"%020d\n" % beat_ns)
        yield folder
