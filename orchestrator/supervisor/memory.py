"""How much main memory an attempt uses, and whether the kernel is killing for lack of it."""

import resource
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.supervisor.cgroup import Group
from orchestrator.supervisor.usage import Usage, proportional

_VMSTAT = Path("/proc/vmstat")
_OOM_KILL_ECHO_S = 5.0
_EXACT_SHARE = 0.05  # of a processor, at the most: counting pages costs the run a little, too


class MemoryWatch:
    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._peak_bytes = 0
        self._looks = 0
        self._held_to_limit = False  # by the kernel, perhaps between two looks
        self._next_exact_s, self._next_exact_bytes = 0.0, 0
        self._oom_kills = _oom_kills()
        self._oom_seen_s: float | None = None

    @property
    def peak_bytes(self) -> int | None:
        """The largest sum seen, at least the limit where the kernel enforced it.

        For a run too short to be looked at, the largest single process.
        """
        if self._looks > 1:
            seen_bytes = self._peak_bytes
        else:
            seen_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        limit_bytes = (self._limit_bytes or 0) if self._held_to_limit else 0
        return max(seen_bytes, limit_bytes) or None

    def check(
        self, members: Sequence[int], usage: Usage, files_bytes: int, now_s: float, group: Group | None = None
    ) -> str | None:
        """Take in one look; a sentence if the attempt is over its limit.

        A control group counts shared pages once.  Without one they are counted exactly only where the quick sum, in
        which each process has them, is over the limit.

        Args:
            files_bytes: what files in main memory take, mapped or not.
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
            return self.killed_at_limit(group)  # version 1 kills one process and lets the others go on
        return self._over(f"used {used_bytes / 2**30:.2f} GiB of main memory, more than its limit of")

    def _is_over(self, used_bytes: int) -> bool:
        return self._limit_bytes is not None and used_bytes > self._limit_bytes

    def _count_exactly(self, members: Sequence[int], sum_bytes: int, files_bytes: int, now_s: float) -> int:
        began_s = time.monotonic()
        used_bytes = proportional(members).memory_bytes(files_bytes)
        self._next_exact_s = now_s + (time.monotonic() - began_s) / _EXACT_SHARE
        self._next_exact_bytes = sum_bytes + (self._limit_bytes or 0) // 8  # it grows: look at once
        return used_bytes

    def killed_at_limit(self, group: Group | None) -> str | None:
        """A sentence if the kernel held the attempt to its limit, faster than we can look (F75)."""
        if group is None or self._limit_bytes is None or not group.oom_kills():
            return None
        self._held_to_limit = True
        return self._over("needed more main memory than its limit of")

    def _over(self, what: str) -> str:
        limit_gib = (self._limit_bytes or 0) / 2**30
        return f"The run {what} {limit_gib:.2f} GiB. Ask for more, or use fewer data-loader workers."

    def kernel_was_killing(self, now_s: float, group: Group | None = None) -> bool:
        """Whether the out-of-memory killer took a process of the run; without a group: was at work just now.

        The machine's counter also counts neighbours that met the limits of groups of their own.
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
    for line in _VMSTAT.read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
