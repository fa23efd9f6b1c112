"""The lease of a node: until when its runs may go on without a word from the server that started them.

One file for all runs of a node.  Its moments count from the boot, by a clock that nobody sets and that
every process of the machine shares.
"""

import json
import os
import time
from pathlib import Path

from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.protocol.records import read_record


def clock_s() -> float:
    """Seconds since this machine's boot, time in suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write_lease(path: Path, *, granted_s: float, until_s: float) -> None:
    """Replace the lease unless a newer one is there; not synced, since it is worth nothing after a crash.

    Args:
        granted_s: the moment from which the lease counts; it orders leases.
        until_s: its end.

    Raises:
        OSError: the disk is full.
    """
    held = read_record(path) or {}
    before_s = held.get("granted_s")
    if held.get("boot_id") == boot_id() and isinstance(before_s, int | float) and before_s > granted_s:
        return
    lease = {"boot_id": boot_id(), "granted_s": granted_s, "until_s": until_s}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(lease))
    part.replace(path)


def overdue_s(path: Path) -> float | None:
    """Seconds since the lease ran out; None while it holds.  Without a lease of this boot nothing may run."""
    lease = read_record(path) or {}
    until_s = lease.get("until_s")
    if lease.get("boot_id") != boot_id() or not isinstance(until_s, int | float):
        return 0.0
    overdue = clock_s() - until_s
    return overdue if overdue > 0 else None
