"""Finds runs that write nothing any more."""

import os
from pathlib import Path

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact


class HangWatch:
    """Watches the sizes of files; what grows lives."""

    def __init__(self, metrics: Path, logs: dict[int, Path], timeout_s: float, now_s: float) -> None:
        self._paths: dict[int | None, Path] = {None: metrics}
        self._paths |= {rank: log for rank, log in logs.items()}  # noqa: C416 -- the key type widens
        self._timeout_s = timeout_s
        self._sizes = dict.fromkeys(self._paths, 0)
        self._grew_s = dict.fromkeys(self._paths, now_s)

    def check(self, now_s: float) -> Fact | None:
        """For how long each rank is silent, once nothing at all grew for the whole time-out; else None."""
        for name, path in self._paths.items():
            try:
                size = os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116 -- each second, for each rank
            except OSError:
                continue
            if size != self._sizes[name]:
                self._sizes[name], self._grew_s[name] = size, now_s
        if now_s - max(self._grew_s.values()) < self._timeout_s:
            return None
        silent_s = [now_s - grew_s for rank, grew_s in self._grew_s.items() if rank is not None]
        return fact(Ended.HUNG, timeout_s=self._timeout_s, silent_s=silent_s)
