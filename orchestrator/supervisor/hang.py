"""Finds runs that write nothing any more."""

import os
from pathlib import Path


class HangWatch:
    """Watches the sizes of files; what grows lives."""

    def __init__(self, metrics: Path, logs: dict[int, Path], timeout_s: float, now_s: float) -> None:
        self._paths: dict[int | None, Path] = {None: metrics}
        self._paths |= {rank: log for rank, log in logs.items()}  # noqa: C416 -- the key type widens
        self._timeout_s = timeout_s
        self._sizes = dict.fromkeys(self._paths, 0)
        self._grew_s = dict.fromkeys(self._paths, now_s)

    def check(self, now_s: float) -> str | None:
        """A sentence that names the silent ranks once nothing at all grew for the whole time-out, else None."""
        for name, path in self._paths.items():
            try:
                size = os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116 -- each second, for each rank
            except OSError:
                continue
            if size != self._sizes[name]:
                self._sizes[name], self._grew_s[name] = size, now_s
        if now_s - max(self._grew_s.values()) < self._timeout_s:
            return None
        return self._sentence(now_s)

    def _sentence(self, now_s: float) -> str:
        silent = ", ".join(
            f"rank {rank} for {now_s - grew_s:.0f} s"
            for rank, grew_s in self._grew_s.items()
            if rank is not None
        )
        return (
            f"Nothing was written to the metrics or the logs for {self._timeout_s:g} s ({silent}). "
            "The ranks probably wait for each other; their stacks are at the end of their logs. "
            "If the script is silent on purpose, raise hang_timeout_s."
        )
