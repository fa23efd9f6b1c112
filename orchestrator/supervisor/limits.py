"""Holds a run to its memory and its number of processes: four looks a second, and ten where it grows."""

import time

from orchestrator.supervisor.launch import Launch
from orchestrator.supervisor.memory import MemoryWatch
from orchestrator.supervisor.run import Run
from orchestrator.supervisor.usage import Usage, measure

_EACH_S = 0.25
_LARGEST_SHARE = 0.25  # of a processor: a bomb of processes makes each look dear
_GROWS_BY = 1 / 64  # of a limit, between two looks
_WORDS_OF_REFUSED_FORKS = ("can't start new thread", "Resource temporarily unavailable")
_NEAR = 0.9  # of the limit on processes: the last one may be too short-lived to be seen


class LimitsWatch:
    """Looks at what a run uses, on a schedule of its own."""

    def __init__(self, launch: Launch) -> None:
        self.memory = MemoryWatch(launch.memory_bytes)
        self._memory_bytes, self._pids = launch.memory_bytes, launch.pids
        self._next_look_s = 0.0
        self._last = Usage()
        self._most_threads = 0
        self.over_memory: str | None = None
        self.over_limit: str | None = None

    def check(self, run: Run, now_s: float) -> None:
        """Look, where it is time to; sets a sentence where the run is over a limit."""
        if now_s < self._next_look_s:
            return
        began_s = time.monotonic()
        members = run.members()
        usage = measure(members)
        files_bytes = run.files_bytes() if run.group is None else 0  # a group counts them itself
        over = self.memory.check(members, usage, files_bytes, now_s, run.group)
        self.over_memory = self.over_memory or over
        if run.group is None and not run.holds_processes:  # else the kernel refuses them
            self.over_limit = self.over_limit or self._too_many(usage.threads)
        pause_s = 0.0 if self._grows(usage) else _EACH_S
        self._next_look_s = now_s + max(pause_s, (time.monotonic() - began_s) / _LARGEST_SHARE)
        self._last, self._most_threads = usage, max(self._most_threads, usage.threads)

    def met_processes(self, run: Run | None, words: str) -> str | None:
        """A sentence if the run probably failed because no further process or thread could be started.

        Args:
            words: what its ranks said last.
        """
        if run is None or self._pids is None:
            return None
        limit = f"its limit of {self._pids:,} processes and threads."
        refused = run.group is not None and run.group.refused_forks() > 0
        if refused or (run.holds_processes and self._most_threads >= _NEAR * self._pids):
            return f"It had met {limit}"
        if run.holds_processes and any(each in words for each in _WORDS_OF_REFUSED_FORKS):
            return f"It may have met {limit}"
        return None

    def _grows(self, usage: Usage) -> bool:
        return _grew(self._last.memory_bytes(), usage.memory_bytes(), self._memory_bytes) or _grew(
            self._last.threads, usage.threads, self._pids
        )

    def _too_many(self, threads: int) -> str | None:
        """A bomb of processes, where the kernel does not stop it at once."""
        if self._pids is None or threads <= self._pids:
            return None
        return f"The run had {threads:,} processes and threads, more than its limit of {self._pids:,}."


def _grew(before: int, now: int, limit: int | None) -> bool:
    return limit is not None and now - before > limit * _GROWS_BY
