"""What was seen of an attempt's end, by rank."""

from orchestrator.supervisor.rank_reports import RankError


class Ending:
    """Everything the supervisor saw; what it did not see stays at its default."""

    def __init__(
        self,
        ranks: int,
        *,
        top: int | None = None,
        torchrun: bool = False,
        finished: dict[int, int] | None = None,
        errors: dict[int, RankError] | None = None,
        codes: dict[int, int] | None = None,
        stop_reason: str | None = None,
        stop_heard: bool = False,
        stop_outlasted_s: float | None = None,
        infra: str | None = None,
        over_memory: str | None = None,
        over_limit: str | None = None,
        at_limit: str | None = None,
        hang: str | None = None,
        unreaped: str | None = None,
        oom_killed: bool = False,
        disk_full: bool = False,
        started_ranks: int | None = None,
        tails: dict[int, str] | None = None,
        launcher_tail: str = "",
    ) -> None:
        self.ranks = ranks
        self.top = top  # code of what the sandbox ran; negative: a signal; None: never started
        self.torchrun = torchrun
        self.finished = finished or {}
        self.errors = errors or {}
        self.codes = codes or {}  # by rank, the first failure first
        self.stop_reason = stop_reason  # of a stop that reached living processes
        self.stop_heard = stop_heard  # a rank caught our SIGTERM before its script returned
        self.stop_outlasted_s = stop_outlasted_s  # the grace after which it had to be killed
        self.infra = infra
        self.over_memory = over_memory
        self.over_limit = over_limit  # ended by us because of the limit that this sentence names
        self.at_limit = at_limit  # a limit that it met and that may be why it failed
        self.hang = hang
        self.unreaped = unreaped  # ended by us because nobody noticed ends any more
        self.oom_killed = oom_killed  # the kernel's out-of-memory killer was at work when it ended
        self.disk_full = disk_full  # nothing could be written when it ended
        self.started_ranks = ranks if started_ranks is None else started_ranks
        self.tails = tails or {}  # the last lines of each rank's log
        self.launcher_tail = launcher_tail  # the last lines of bubblewrap's or torchrun's own output

    def code(self, rank: int) -> int | None:
        """The rank's exit code, negative for a signal, None where nobody saw it."""
        if rank in self.codes:
            return self.codes[rank]
        if rank in self.finished:
            return self.finished[rank]
        if self.ranks == 1 or self.top == 0:
            return self.top
        return 1 if rank in self.errors else None


def rank_rows(ending: Ending) -> list[dict[str, object]]:
    """One row a rank for the record: code or signal, and whether the script's code returned."""
    rows: list[dict[str, object]] = []
    for rank in range(ending.ranks):
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
