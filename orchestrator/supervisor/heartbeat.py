"""A sign of life each second: monotonic nanoseconds, written in place without fsync."""

import os
import time

from orchestrator.supervisor.folder import AttemptFolder


class Heartbeat:
    def __init__(self, folder: AttemptFolder) -> None:
        self._fd = os.open(folder.heartbeat, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def beat(self) -> None:
        os.pwrite(self._fd, b"%020d\n" % time.monotonic_ns(), 0)


def heartbeat_age_s(folder: AttemptFolder) -> float | None:
    """How long ago the supervisor showed life, on this boot's clock; None where it never did."""
    try:
        beat_ns = int(folder.heartbeat.read_bytes())
    except (OSError, ValueError):
        return None
    return max(0.0, (time.monotonic_ns() - beat_ns) / 1e9)
