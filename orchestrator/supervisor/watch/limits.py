"""Enforces the limits on memory and processes: checks four times a second, ten times while they grow."""

import time

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.ranks.run import Run
from orchestrator.supervisor.watch.memory import MemoryWatch, Usage, measure

_EACH_S = 0.25
_LARGEST_SHARE = 0.25  # of a processor: a fork bomb makes each look expensive
_GROWS_BY = 1 / 64  # of a limit, between two looks
_WORDS_OF_REFUSED_FORKS = ("can't start new thread", "Resource temporarily unavailable")
_NEAR = 0.9  # of the process limit: the last processes may be too short-lived to be seen


class LimitsWatch:
    """Measures what a run uses, on its own schedule."""

    def __init__(self, launch: Launch) -> None:
        self.memory = MemoryWatch(launch.memory_bytes)
        self._memory_bytes, self._pids = launch.memory_bytes, launch.pids
        self._next_look_s = 0.0
        self._last = Usage()
        self._most_threads = 0
        self.over_memory: Fact | None = None
        self.over_limit: Fact | None = None

    def check(self, run: Run, now_s: float) -> None:
        """Measure if it is time to; sets a fact if the run exceeds a limit."""
        if now_s < self._next_look_s:
            return
        began_s = time.monotonic()
        members = run.members()
        usage = measure(members)
        files_bytes = (
            run.files_bytes() if run.group is None else 0
        )  # a control group counts these files itself
        over = self.memory.check(members, usage, files_bytes, now_s, run.group)
        self.over_memory = self.over_memory or over
        if run.group is None and not run.holds_processes:  # otherwise the kernel enforces the limit
            self.over_limit = self.over_limit or self._too_many(usage.threads)
        pause_s = 0.0 if self._grows(usage) else _EACH_S
        self._next_look_s = now_s + max(pause_s, (time.monotonic() - began_s) / _LARGEST_SHARE)
        self._last, self._most_threads = usage, max(self._most_threads, usage.threads)

    def met_processes(self, run: Run | None, words: str) -> dict[str, int] | None:
        """The process limit, if the run probably failed because it could not start another process or thread.

        Args:
            words: error messages and last log lines of the ranks.
        """
        if run is None or self._pids is None:
            return None
        refused = run.group is not None and run.group.refused_forks() > 0
        if refused or (run.holds_processes and self._most_threads >= _NEAR * self._pids):
            return {"processes": self._pids, "certain": True}
        if run.holds_processes and any(message in words for message in _WORDS_OF_REFUSED_FORKS):
            return {"processes": self._pids, "certain": False}
        return None

    def _grows(self, usage: Usage) -> bool:
        return _grew(self._last.memory_bytes(), usage.memory_bytes(), self._memory_bytes) or _grew(
            self._last.threads, usage.threads, self._pids
        )

    def _too_many(self, threads: int) -> Fact | None:
        """The size of a fork bomb that the kernel does not stop by itself."""
        if self._pids is None or threads <= self._pids:
            return None
        return fact(Ended.TOO_MANY_PROCESSES, threads=threads, limit=self._pids)


def _grew(before: int, now: int, limit: int | None) -> bool:
    return limit is not None and now - before > limit * _GROWS_BY
