"""Watches the main memory of an attempt, and kills by the kernel for lack of memory."""

import resource
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact
from orchestrator.supervisor.linux.processes import status_lines
from orchestrator.supervisor.sandbox import cgroup
from orchestrator.supervisor.sandbox.cgroup import Group

_VMSTAT = Path("/proc/vmstat")
_OOM_KILL_ECHO_S = 5.0
_EXACT_SHARE = 0.05  # of a processor at most: counting pages also slows the run a little


class Usage:
    """Memory in bytes.  Pages that several processes map are counted for each (but see ``proportional``)."""

    __slots__ = ("anonymous_bytes", "shared_bytes", "threads")

    def __init__(self, anonymous_bytes: int = 0, shared_bytes: int = 0, threads: int = 0) -> None:
        self.anonymous_bytes = anonymous_bytes
        self.shared_bytes = shared_bytes  # of files in main memory, such as in /dev/shm
        self.threads = threads  # a process has at least one

    def memory_bytes(self, files_bytes: int = 0) -> int:
        """Total memory; files in main memory, mapped or not, take ``files_bytes``."""
        return self.anonymous_bytes + max(self.shared_bytes, files_bytes)


def measure(pids: Iterable[int]) -> Usage:
    """Measure quickly, in 20 us a process.

    Ignores mapped files: each rank maps the same gigabytes of libraries, and the kernel can drop them.
    """
    usage = Usage()
    for pid in pids:
        values = _numbers(status_lines(pid))
        usage.anonymous_bytes += values.get("RssAnon", 0) * 1024
        usage.shared_bytes += values.get("RssShmem", 0) * 1024
        usage.threads += values.get("Threads", 0)
    return usage


def proportional(pids: Iterable[int]) -> Usage:
    """Measure like ``measure``, but count shared pages (of forked workers) once.

    The kernel walks all pages for this, about 5 ms a GiB.  A process that hides its pages is counted in full.
    """
    usage = Usage()
    for pid in pids:
        values = _numbers(status_lines(pid))
        values |= _numbers(status_lines(pid, "smaps_rollup"))
        usage.anonymous_bytes += values.get("Pss_Anon", values.get("RssAnon", 0)) * 1024
        usage.shared_bytes += values.get("Pss_Shmem", values.get("RssShmem", 0)) * 1024
        usage.threads += values.get("Threads", 0)
    return usage


def _numbers(lines: Iterable[str]) -> dict[str, int]:
    """Parse lines of a name, a colon and a number."""
    rows = (line.split() for line in lines)
    return {row[0][:-1]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


class MemoryWatch:
    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._peak_bytes = 0
        self._looks = 0
        self._held_to_limit = False  # the kernel enforced the limit, perhaps between two looks
        self._next_exact_s, self._next_exact_bytes = 0.0, 0
        self._oom_kills = _oom_kills()
        self._oom_seen_s: float | None = None

    @property
    def peak_bytes(self) -> int | None:
        """The largest sum measured; at least the limit if the kernel enforced it.

        For a run too short to be measured, the largest single process.
        """
        if self._looks > 1:
            seen_bytes = self._peak_bytes
        else:
            seen_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        limit_bytes = (self._limit_bytes or 0) if self._held_to_limit else 0
        return max(seen_bytes, limit_bytes) or None

    def check(
        self, members: Sequence[int], usage: Usage, files_bytes: int, now_s: float, group: Group | None = None
    ) -> Fact | None:
        """Process one measurement; returns the memory used if the attempt exceeds its limit.

        A control group counts shared pages once.  Without one, the quick sum counts them for each process; they are
        counted exactly only if that sum exceeds the limit.

        Args:
            files_bytes: memory of files in main memory, mapped or not.
        """
        counted_bytes = group.memory_bytes() if group else None
        used_bytes = usage.memory_bytes(files_bytes) if counted_bytes is None else counted_bytes
        if counted_bytes is None and self._is_over(used_bytes):
            if now_s < self._next_exact_s and used_bytes < self._next_exact_bytes:
                return None
            used_bytes = self._count_exactly(members, used_bytes, files_bytes, now_s)
        self._looks += 1
        self._peak_bytes = max(self._peak_bytes, used_bytes)
        self._look_for_oom_kills(now_s)
        if not self._is_over(used_bytes):
            return self.killed_at_limit(group)  # version 1 kills one process and lets the others run
        return fact(Ended.OVER_MEMORY, used_bytes=used_bytes, limit_bytes=self._limit_bytes)

    def _is_over(self, used_bytes: int) -> bool:
        return self._limit_bytes is not None and used_bytes > self._limit_bytes

    def _count_exactly(self, members: Sequence[int], sum_bytes: int, files_bytes: int, now_s: float) -> int:
        began_s = time.monotonic()
        used_bytes = proportional(members).memory_bytes(files_bytes)
        self._next_exact_s = now_s + (time.monotonic() - began_s) / _EXACT_SHARE
        self._next_exact_bytes = (
            sum_bytes + (self._limit_bytes or 0) // 8
        )  # memory grows: count again at once
        return used_bytes

    def killed_at_limit(self, group: Group | None) -> Fact | None:
        """The limit, if the kernel enforced the limit by killing, faster than this watch could notice."""
        if group is None or self._limit_bytes is None or not group.oom_kills():
            return None
        self._held_to_limit = True
        return fact(Ended.KILLED_AT_MEMORY_LIMIT, limit_bytes=self._limit_bytes)

    def kernel_was_killing(self, now_s: float, group: Group | None = None) -> bool:
        """Whether the out-of-memory killer killed a process of the run; without a group: was active just now.

        Without one, processes beside the run are counted too: of the group that it shares with them if the kernel
        counts by groups, otherwise of the whole machine.
        """
        if group is not None and (kills := group.oom_kills()) is not None:
            return kills > 0
        self._look_for_oom_kills(now_s)
        return self._oom_seen_s is not None and now_s - self._oom_seen_s <= _OOM_KILL_ECHO_S

    def _look_for_oom_kills(self, now_s: float) -> None:
        kills = _oom_kills()
        if kills > self._oom_kills:
            self._oom_kills, self._oom_seen_s = kills, now_s


def _oom_kills() -> int:
    """Of the group that a run without one of its own shares, otherwise of the machine."""
    if (kills := cgroup.own_oom_kills()) is not None:
        return kills
    for line in _VMSTAT.read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
