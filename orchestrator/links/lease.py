"""The lease of a node as this server keeps it: until when runs there may go on while the node is silent.

The node counts from a moment that it told itself, and we from when we heard of that moment, which is later.  So the
lease has ended there once it has ended here, whatever the clocks of both servers show and however late calls arrive.
"""

import json
import os
import threading
from pathlib import Path

from orchestrator.nodes.port import Grant, Moment, Port
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.protocol.lease import clock_s
from orchestrator.supervisor.protocol.records import read_record

FOREVER_S = 10 * 365 * 86_400.0  # a lease that never runs out, where the setting is 0
SLOWER = 1.01  # far more than one machine's quartz differs from another's
MARGIN_S = 15.0  # for a supervisor that looks once a second, and for the kernel to end processes
RENEWALS = 12  # in the time of a lease
RENEW_WITHIN_S = 5.0


class NodeLease:
    """One node's lease; its link renews it, and carriers grant it with each start."""

    def __init__(self, path: Path, length_s: float) -> None:
        """Take up the lease where an earlier process of ours left it.

        Args:
            path: where its end is kept.
            length_s: 0 for one that never runs out.
        """
        self._path = path
        self._length_s = length_s or FOREVER_S
        self.renew_every_s = min(RENEW_WITHIN_S, self._length_s / RENEWALS)
        self._lock = threading.Lock()
        self._now: Moment | None = None  # of the node, and when we heard of it
        self._heard_s = 0.0
        # The ends of leases that the node may have, by the moment from which they count.
        self._ends_s: dict[Moment | None, float] = {None: self._end_before()}

    def renew(self, port: Port) -> None:
        """Renew the lease.

        Raises:
            OSError: the node does not answer, or our disk is full; the node may have renewed it.
        """
        grant = self.grant()
        now = port.renew(grant)
        with self._lock:
            self._ends_s = {since: end for since, end in self._ends_s.items() if _may_hold(since, grant, now)}
            self._now, self._heard_s = now, clock_s()

    def grant(self) -> Grant | None:
        """What the next call grants, written down before it can be sent; None before the node told its moment.

        Raises:
            OSError: our disk is full.
        """
        with self._lock:
            if self._now is None:
                return None
            if self._now not in self._ends_s:
                self._ends_s[self._now] = self._heard_s + self._length_s * SLOWER
                self._keep()
            return Grant(self._now, self._length_s)

    def has_run_out(self, stops_within_s: float) -> bool:
        """Whether the lease has certainly ended on the node, and everything that was stopped by it."""
        with self._lock:
            end_s = max(self._ends_s.values(), default=0.0)
        return clock_s() > end_s + stops_within_s * SLOWER + MARGIN_S

    def _end_before(self) -> float:
        """The end of the lease that was granted by an earlier process, on our clock."""
        record = read_record(self._path) or {}
        end_s, length_s = record.get("end_s"), record.get("length_s")
        if record.get("boot_id") == boot_id() and isinstance(end_s, int | float):
            return float(end_s)
        # We were restarted, and our clock with us: it may have been granted a moment ago.
        longest_s = float(length_s) if isinstance(length_s, int | float) else self._length_s
        return clock_s() + longest_s * SLOWER

    def _keep(self) -> None:
        end_s = max(self._ends_s.values())
        longest_s = max(self._length_s, end_s - clock_s())
        record = {"boot_id": boot_id(), "end_s": end_s, "length_s": longest_s}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        part.write_text(json.dumps(record))
        part.replace(self._path)


def _may_hold(since: Moment | None, grant: Grant | None, now: Moment) -> bool:
    """Whether a lease may still be the node's once it answered a call with ``grant`` at ``now``.

    A node never goes back to an older lease, and takes none of an earlier boot.
    """
    if grant is None or grant.since.boot != now.boot:
        return since is None or since.boot == now.boot
    return since is not None and since.boot == now.boot and since.at_s >= grant.since.at_s
