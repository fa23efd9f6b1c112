"""The evidence of an attempt's end."""

from collections.abc import Mapping
from typing import TypedDict

from orchestrator.facts.record import Fact
from orchestrator.supervisor.verdict.rank_reports import RankError


class Ending:
    """Everything the supervisor saw of an end; defaults stand for what it did not see."""

    def __init__(
        self,
        ranks: int,
        *,
        first_rank: int = 0,
        top: int | None = None,
        torchrun: bool = False,
        finished: dict[int, int] | None = None,
        errors: dict[int, RankError] | None = None,
        codes: dict[int, int] | None = None,
        stop_reason: str | None = None,
        stop_heard: bool = False,
        stop_outlasted_s: float | None = None,
        infra: str | None = None,
        over_memory: Fact | None = None,
        over_limit: Fact | None = None,
        at_limit: Mapping[str, object] | None = None,
        hang: Fact | None = None,
        unreaped: Fact | None = None,
        oom_killed: bool = False,
        disk_full: bool = False,
        started_ranks: int | None = None,
        left: int = 0,
        tails: dict[int, str] | None = None,
        launcher_tail: str = "",
    ) -> None:
        self.ranks = ranks
        self.numbers = range(first_rank, first_rank + ranks)
        self.top = top  # code of the sandbox's first process; negative: a signal; None: never started
        self.torchrun = torchrun
        self.finished = finished or {}
        self.errors = errors or {}
        self.codes = codes or {}  # by rank, first failure first
        self.stop_reason = stop_reason  # of a stop that reached living processes
        self.stop_heard = stop_heard  # a rank caught our SIGTERM before its script returned
        self.stop_outlasted_s = stop_outlasted_s  # the grace, if a rank outlived it and was killed
        self.infra = infra
        self.over_memory = over_memory
        self.over_limit = over_limit  # we ended it because of this limit
        self.at_limit = at_limit  # a limit that it reached, possibly the cause
        self.hang = hang
        self.unreaped = unreaped  # we ended it because ends were no longer noticed
        self.oom_killed = oom_killed  # the kernel's out-of-memory killer was active at the end
        self.disk_full = disk_full  # the disk was full at the end
        self.started_ranks = ranks if started_ranks is None else started_ranks
        self.left = left  # processes that ran on when the ranks exited
        self.tails = tails or {}  # the last lines of each rank's log
        self.launcher_tail = launcher_tail  # the last lines of bubblewrap's or torchrun's own output

    def code(self, rank: int) -> int | None:
        """The rank's exit code, negative for a signal; None if nobody saw it."""
        if rank in self.codes:
            return self.codes[rank]
        if rank in self.finished:
            return self.finished[rank]
        if (self.ranks == 1 and not self.torchrun) or self.top == 0:
            return self.top
        return 1 if rank in self.errors else None


class RankRow(TypedDict):
    """The end of one rank in the exit record."""

    rank: int
    code: int | None
    signal: int | None
    finished: bool


def rank_rows(ending: Ending) -> list[RankRow]:
    """One row a rank for the exit record: code or signal, and whether the script returned."""
    rows: list[RankRow] = []
    for rank in ending.numbers:
        code = ending.code(rank)
        rows.append(
            {
                "rank": rank,
                "code": code if code is not None and code >= 0 else None,
                "signal": -code if code is not None and code < 0 else None,
                "finished": rank in ending.finished,
            }
        )
    return rows
