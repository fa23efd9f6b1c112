"""A run over several nodes: what the links of its nodes share, and how its parts become one end.

The node of rank 0 has the attempt's own folder, every other node one below ``parts``.  Links run in one process.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypedDict, cast
from uuid import UUID

from orchestrator.nodes.copies import MEETING, Copy
from orchestrator.nodes.port import Port
from orchestrator.nodes.runs import Order
from orchestrator.store.layout import Home
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.protocol.records import Record, read_record, write_record

OVER = frozenset({Liveness.ENDED, Liveness.LOST})
STOP_AFTER_S = 3.0  # in which the part that failed first tells why, and others that lost their peers
GRACE_S = 5.0  # for ranks that wait for peers which will not come


class Gang:
    """One attempt over several nodes."""

    def __init__(self, folder: AttemptFolder, nonce: str) -> None:
        self.folder = folder
        self.nonce = nonce
        # What the node of rank 0 wrote, which others leave to it, and folders that it removed, shards of others included.
        self.leaders_files: set[str] = set()
        self.removed: set[str] = set()
        self.is_settled = False  # lost, and nothing of it runs any more
        self.leaders_end: Record | None = None  # of rank 0's part, as soon as it is seen; empty: lost
        self._pulled_s: dict[str, float] = {}  # when a part began to bring its files the last time
        self._over: list[str] = []  # parts, in the order in which their ends were seen
        self._failed_s: float | None = None
        self._stopped: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the end of the whole is written, or a newer attempt has begun."""
        newer = self.folder.root.with_name(str(int(self.folder.root.name) + 1))
        return self.is_settled or self.folder.exit.exists() or newer.exists() or not self.folder.root.exists()

    @property
    def parts(self) -> dict[str, Copy]:
        """The copies of all parts, that of rank 0 first, under the empty name."""
        try:
            names = sorted(path.name for path in self.folder.parts.iterdir())
        except FileNotFoundError:
            names = []
        others = {name: Copy(self.folder.part(name), self.nonce) for name in names}
        return {"": Copy(self.folder, self.nonce), **others}

    def may_start(self, part: str) -> bool:
        """Whether the ranks of a part could reach the ranks on rank 0's node."""
        return not part or (self.folder.root / MEETING).exists()

    def meeting(self, port: Port, part: str) -> Record | None:
        """Where the ranks meet; the node of rank 0 chooses it, and others wait until it has.

        Raises:
            OSError: the node does not answer.
        """
        path = self.folder.root / MEETING
        if not part and not path.exists():
            address, number = port.meet()
            write_record(path, {"address": address, "port": number})
        return read_record(path)

    def lets_bring(self, path: str) -> bool:
        """Whether a part other than rank 0's may bring a file."""
        above = [path, *(str(each) for each in PurePosixPath(path).parents)]
        return path not in self.leaders_files and self.removed.isdisjoint(above)

    def note_pulled(self, part: str, began_s: float) -> None:
        self._pulled_s[part] = began_s

    def others_pulled_since(self, moment_s: float) -> bool:
        """Whether every other part has brought what it had at a moment, so that no checkpoint lacks a shard."""
        return all(
            copy.is_over or self._pulled_s.get(part, 0.0) >= moment_s
            for part, copy in self.parts.items()
            if part
        )

    def others_are_here(self) -> bool:
        """Whether every other part is over, with all its files here."""
        return all(copy.is_over for part, copy in self.parts.items() if part)

    def others_are_lost(self) -> bool:
        return any(copy.state() is Liveness.LOST for part, copy in self.parts.items() if part)

    def tend(self) -> None:
        """Show the logs of all parts in one place, stop what is left of a gang that lost a part, and write its end.

        Raises:
            OSError: the disk is full.
        """
        parts = self.parts
        self._link_logs(parts)
        if parts[""].is_over:
            return
        states = {part: copy.part_state() for part, copy in parts.items()}
        self._over += [part for part in states if self._ended(part, states) and part not in self._over]
        if set(states.values()) <= OVER:
            if Liveness.LOST in states.values():
                self.is_settled = True
            else:
                write_record(self.folder.exit, merged_end(self._ends(parts)))
            return
        if any(states[part] is Liveness.LOST or not self._is_ok(part, parts[part]) for part in self._over):
            self._failed_s = self._failed_s or time.monotonic()
            if time.monotonic() - self._failed_s >= STOP_AFTER_S:
                self._stop(parts, states)

    def _ended(self, part: str, states: Mapping[str, Liveness]) -> bool:
        """Whether a part has ended; what rank 0's left comes last, after the ends of all others."""
        return states[part] in OVER or (not part and self.leaders_end is not None)

    def _is_ok(self, part: str, copy: Copy) -> bool:
        end = copy.part_end() or (None if part else self.leaders_end)
        return (end or {}).get("kind") == "ok"

    def _stop(self, parts: Mapping[str, Copy], states: Mapping[str, Liveness]) -> None:
        for part, copy in parts.items():
            if self._ended(part, states):
                continue
            if states[part] is Liveness.NEVER_STARTED and part:  # rank 0's was taken before any other
                how = {"number": int(self.folder.root.name), "nonce": self.nonce, "kind": "infra"}
                copy.forestall(
                    {**how, "code": "stopped", "facts": {"reason": "gang"}, "stop": {"reason": "gang"}}
                )
            if part not in self._stopped:
                order_stop(copy.folder, "gang", GRACE_S)
                self._stopped.add(part)

    def _ends(self, parts: Mapping[str, Copy]) -> list[Record]:
        """The exit records, in the order in which the ends were seen."""
        ends = [parts[part].part_end() for part in self._over]
        return [end for end in ends if end is not None]

    def _link_logs(self, parts: Mapping[str, Copy]) -> None:
        """Link the logs of other nodes' ranks into the folder of rank 0's logs; they only grow."""
        for part, copy in parts.items():
            for rank in self._ranks_of(copy) if part else ():
                log, name = copy.folder.log(rank), self.folder.log(rank)
                if log.is_file() and not log.is_symlink() and not name.exists():
                    os.link(log, name, follow_symlinks=False)

    def _ranks_of(self, copy: Copy) -> range:
        """The ranks of a part, as its launch record says; names in its folder are the run's own."""
        launch = read_record(copy.folder.launch) or {}
        first, count = launch.get("first_rank"), launch.get("ranks")
        return range(first, first + count) if isinstance(first, int) and isinstance(count, int) else range(0)


class Gangs:
    """The runs over several nodes that the links of this process serve."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gangs: dict[tuple[UUID, int], Gang] = {}

    def of(self, home: Home, order: Order) -> Gang:
        """The gang of an order."""
        with self._lock:
            key = (order.job, order.attempt)
            if key not in self._gangs:
                self._gangs[key] = Gang(home.job(order.job).attempt(order.attempt), order.nonce)
            return self._gangs[key]

    def live(self) -> list[Gang]:
        """Those that are not over; the others are forgotten."""
        with self._lock:
            self._gangs = {key: gang for key, gang in self._gangs.items() if not gang.is_over}
            return list(self._gangs.values())


def merged_end(ends: Sequence[Record]) -> Record:
    """Merge the exit records of all parts into one; they come in the order in which they were seen.

    The part that caused the end tells its kind: its own exception or limit before the loss of peers.
    """
    cause = min(ends, key=_distance_from_cause)
    leader = min(ends, key=_first_rank)
    dropped: dict[str, object] = {}
    for end in ends:
        dropped |= _table(end.get("dropped_bytes"))
    return {
        **cause,
        "ranks": sorted((row for end in ends for row in _rows(end)), key=lambda row: row.get("rank", 0)),
        "dropped_bytes": dropped,
        "stop": leader.get("stop"),
        "started_at": leader.get("started_at"),
        "ended_at": leader.get("ended_at"),
        "run_s": max(_number(end.get("run_s")) for end in ends),
        "peak_memory_bytes": max(_number(end.get("peak_memory_bytes")) for end in ends) or None,
    }


def _distance_from_cause(end: Record) -> int:
    """How far an end is from what began it; among equals the one that was seen first counts."""
    reason = _table(end.get("stop")).get("reason")
    if end.get("kind") == "ok":
        return 6
    if reason == "gang":
        return 5
    if reason is not None:
        return 0
    if end.get("peers_lost") is True:
        return 4
    if _table(end.get("first_failure")).get("exception") or end.get("kind") in (
        "oom_gpu",
        "oom_cpu",
        "hang",
        "gpu_fault",
    ):
        return 1
    return 2 if end.get("kind") == "signal" else 3


def _first_rank(end: Record) -> int:
    return min((int(row.get("rank", 0)) for row in _rows(end)), default=1 << 30)


class RankRow(TypedDict, total=False):
    """What an exit record says of a rank, as far as parts are merged by it."""

    rank: int


def _rows(end: Record) -> list[RankRow]:
    rows = end.get("ranks")
    return [cast("RankRow", row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
