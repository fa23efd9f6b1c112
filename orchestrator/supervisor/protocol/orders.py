"""Orders of the server to a supervisor: files in ``orders/``, which are only ever added."""

import os
import re
import signal
import time

from orchestrator.supervisor.linux.processes import from_record, send_signal
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import Record, read_record, write_record

STOP_REASONS = ("cancel", "timeout", "preempt", "gpu_fault", "shutdown", "policy", "memory", "lease", "gang")


class StopOrder:
    """Ends the run; ``saved``: a checkpoint newer than the first order was kept, so there is no reason to wait."""

    __slots__ = ("grace_s", "reason", "saved")

    def __init__(self, reason: str, grace_s: float, *, saved: bool = False) -> None:
        self.reason = reason
        self.grace_s = grace_s
        self.saved = saved


class CheckpointOrder:
    """Asks the ranks that handle SIGUSR1 to save now."""


class ProfileOrder:
    """Asks rank 0 to profile its next steps; the answer carries the token."""

    __slots__ = ("token",)

    def __init__(self, token: str) -> None:
        self.token = token


class ShellOrder:
    """Lets one connection in; the token names its socket."""

    __slots__ = ("token",)

    def __init__(self, token: str) -> None:
        self.token = token


Known = StopOrder | CheckpointOrder | ProfileOrder | ShellOrder
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,64}")  # becomes the name of a file


class OrderBook:
    """Reads each order once, in order of names."""

    def __init__(self, folder: AttemptFolder) -> None:
        self._folder = folder
        self._seen: set[str] = set()

    def new(self) -> list[Known]:
        """Orders added since the last call.

        Raises:
            OSError: the attempt's folder is gone.
        """
        with os.scandir(self._folder.orders) as entries:
            names = sorted(entry.name for entry in entries if entry.name not in self._seen)
        orders: list[Known] = []
        for name in names:
            if not name.endswith(".json") or name.startswith("."):
                continue
            self._seen.add(name)
            order = parse_order(read_record(self._folder.orders / name))
            if order is not None:
                orders.append(order)
        return orders


def parse_order(record: Record | None) -> Known | None:
    """The order in a record; None for an unknown one, perhaps of a newer version."""
    match record:
        case {"order": "checkpoint"}:
            return CheckpointOrder()
        case {"order": "profile", "token": str(token)}:
            return ProfileOrder(token)
        case {"order": "shell", "token": str(token)} if _TOKEN.fullmatch(token):
            return ShellOrder(token)
        case {"order": "stop", **fields}:
            reason, grace_s = fields.get("reason"), fields.get("grace_s")
            stop_reason = reason if isinstance(reason, str) and reason in STOP_REASONS else "policy"
            grace_s = max(0.0, float(grace_s)) if isinstance(grace_s, int | float) else 0.0
            return StopOrder(stop_reason, grace_s, saved=fields.get("saved") is True)
    return None


def order_stop(folder: AttemptFolder, reason: str, grace_s: float, *, saved: bool = False) -> None:
    """Ask the attempt to end.  Repeated orders are harmless; a shorter grace shortens the wait.

    ``reason`` is one of STOP_REASONS; ``saved`` tells that a checkpoint was kept since the first order.
    """
    assert reason in STOP_REASONS, reason  # noqa: S101 -- our own caller's mistake
    _add(folder, {"order": "stop", "reason": reason, "grace_s": grace_s, "saved": saved})


def order_checkpoint(folder: AttemptFolder) -> None:
    """Ask the ranks to save now, if the script handles SIGUSR1."""
    _add(folder, {"order": "checkpoint"})


def order_profile(folder: AttemptFolder) -> str:
    """Ask rank 0 to profile its next steps; returns the token of the answer in ``folder.profile``."""
    token = f"{time.time_ns()}-{os.getpid()}"
    _add(folder, {"order": "profile", "token": token})
    return token


def order_shell(folder: AttemptFolder) -> str:
    """Ask for a way into the run; returns the token of its socket, or of the record that says why there is none."""
    token = os.urandom(24).hex()  # `secrets` costs each supervisor 4 ms at its start
    _add(folder, {"order": "shell", "token": token})
    return token


def _add(folder: AttemptFolder, order: dict[str, str | float]) -> None:
    folder.orders.mkdir(mode=0o700, exist_ok=True)
    # Two processes that write in the same nanosecond have different pids.
    write_record(folder.orders / f"{time.time_ns():020d}-{os.getpid()}.json", order)
    _wake(folder)


def _wake(folder: AttemptFolder) -> None:
    """End the supervisor's wait for its children, so that it obeys now; it would look by itself within 0.1 s.

    A process that does not wait ignores SIGCHLD.  The supervisor of another server's attempt is not signalled.
    """
    supervisor = from_record(read_record(folder.supervisor))
    if supervisor is not None:
        send_signal(supervisor, signal.SIGCHLD)
