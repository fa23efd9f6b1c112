"""How an attempt ended: from what was seen to one kind, the first failure and a sentence for people.

Pure; the rules stand in their order of precedence in ``_RULES``.
"""

import re
import signal
from collections.abc import Callable

from orchestrator.supervisor.rank_reports import RankError

KIND_OF_STOP = {
    "cancel": "cancelled",
    "timeout": "timeout",
    "preempt": "preempted",
    "shutdown": "preempted",
    "policy": "cancelled",
    "memory": "oom_gpu",
    "gpu_fault": "gpu_fault",
}
_STOP_SENTENCES = {
    "cancel": "Cancelled on request.",
    "timeout": "Stopped at its time limit.",
    "preempt": "Stopped before its end; it is queued again and will be resumed.",
    "shutdown": "Stopped because the server shuts down; it will be resumed.",
    "policy": "Stopped by a rule of the pool.",
    "memory": "Stopped because it used more GPU memory than it had claimed.",
    "gpu_fault": "Stopped because its GPU reported a fault.",
}
_GPU_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|NVML_ERROR_MEMORY"
)
# As torch's allocator says it; its number of the GPU is the rank's own count, which would mislead.
_GPU_MEMORY_SHORT = re.compile(
    r"Tried to allocate ([\d.]+ \w+)\. GPU \d+ has a total capaci?ty of ([\d.]+ \w+) of which ([\d.]+ \w+) is free"
)
_CPU_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|std::bad_alloc|unable to mmap|unable to allocate"
)
_GPU_FAULT = re.compile(
    r"uncorrectable (NVLink |ECC )?error|fallen off the bus|GPU is lost|device is (lost|no longer)|"
    r"CUDA-capable device\(s\) is/are busy|unspecified launch failure.*ECC",
    re.IGNORECASE,
)
# What a rank raises because another one has gone.
_PEER_LOST = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|Connection was likely closed|remote process exited|"
    r"socketPollConnect|ncclRemoteError|failed to recv|Socket Timeout|connection refused",
    re.IGNORECASE,
)
_PEER_EXCEPTIONS = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "ConnectionResetError",
    "BrokenPipeError",
)


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
        infra: str | None = None,
        over_memory: str | None = None,
        over_limit: str | None = None,
        at_limit: str | None = None,
        hang: str | None = None,
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
        self.infra = infra
        self.over_memory = over_memory
        self.over_limit = over_limit  # ended by us because of the limit that this sentence names
        self.at_limit = at_limit  # a limit that it met and that may be why it failed
        self.hang = hang
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


class Verdict:
    """A kind, a sentence, and which rank failed first."""

    def __init__(self, kind: str, detail: str, first_rank: int | None = None) -> None:
        self.kind = kind
        self.detail = detail
        self.first_rank = first_rank


def classify(ending: Ending) -> Verdict:
    for rule in _RULES:
        verdict = rule(ending)
        if verdict is not None:
            if ending.at_limit and verdict.kind in _MAY_BE_LIMITS:
                verdict.detail = f"{verdict.detail} {ending.at_limit}"
            if verdict.kind == "user_error" and _lacked_room(ending):
                return Verdict("infra", f"{verdict.detail} The disk was full.", verdict.first_rank)
            return verdict
    return Verdict("infra", "The run ended and left no trace of why; its logs may tell.")


def _lacked_room(ending: Ending) -> bool:
    """The disk was full, by no fault of the script: the same code may work when there is room again (F50)."""
    if ending.over_limit is not None:
        return False
    return ending.disk_full or any(_NO_ROOM.search(error.message) for error in ending.errors.values())


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


def first_failure(ending: Ending, verdict: Verdict) -> dict[str, object] | None:
    if verdict.first_rank is None:
        return None
    row = rank_rows(ending)[verdict.first_rank]
    error = ending.errors.get(verdict.first_rank)
    return {
        "rank": verdict.first_rank,
        "code": row["code"],
        "signal": row["signal"],
        "exception": error.exception if error else None,
        "message": error.message if error else None,
    }


def _infra(ending: Ending) -> Verdict | None:
    return Verdict("infra", ending.infra) if ending.infra else None


def _finished(ending: Ending) -> Verdict | None:
    """What finished, finished, even while a stop was under way (F88).

    A rank that caught our signal and then returned did so because it was asked: it is not finished.
    """
    if ending.stop_heard:
        return None
    if len(ending.finished) == ending.ranks and not any(ending.finished.values()):
        return Verdict("ok", "Finished." + _abort_note(ending))
    if ending.top == 0 and not ending.stop_reason and not any(ending.finished.values()):
        return Verdict("ok", "Finished.")
    return None


def _abort_note(ending: Ending) -> str:
    aborted = [rank for rank, code in ending.codes.items() if code < 0]
    if not aborted and (ending.top is None or ending.top >= 0):
        return ""
    number = -ending.codes[aborted[0]] if aborted else -(ending.top or 0)
    return f" After the script had returned, a process was ended by {_signal_name(number)}; the result is not touched."


def _stopped(ending: Ending) -> Verdict | None:
    if ending.stop_reason is None:
        return None
    return Verdict(KIND_OF_STOP[ending.stop_reason], _STOP_SENTENCES[ending.stop_reason])


def _over_memory(ending: Ending) -> Verdict | None:
    return Verdict("oom_cpu", ending.over_memory) if ending.over_memory else None


def _over_limit(ending: Ending) -> Verdict | None:
    return Verdict("user_error", ending.over_limit) if ending.over_limit else None


def _hung(ending: Ending) -> Verdict | None:
    if not ending.hang:
        return None
    left = sorted(ending.finished)
    if not left or len(left) == ending.ranks:
        return Verdict("hang", ending.hang)
    who = f"Rank {left[0]} had" if len(left) == 1 else f"Ranks {', '.join(map(str, left))} had"
    return Verdict("hang", f"{ending.hang} {who} left before the others.")


def _raised(ending: Ending) -> Verdict | None:
    own = {rank: error for rank, error in ending.errors.items() if not _peer_lost(error)}
    if not own and any(_is_cause(code) for code in ending.codes.values()):
        return None  # the exceptions only tell that another rank was killed
    errors = own or ending.errors
    if not errors:
        return None
    rank = min(errors, key=lambda other: errors[other].time_ns)
    error = errors[rank]
    short = error.message.strip().splitlines()[0][:300] if error.message.strip() else ""
    raised = f"{error.exception}: {short}" if short else error.exception
    kind = _kind_of_text(f"{error.exception}: {error.message}")
    if error.exception == "MemoryError":
        kind = "oom_cpu"
    if error.exception == "RankHangs":  # the training library found it and ended it
        return Verdict("hang", short, rank)
    if error.exception.rpartition(".")[2] == "OutOfMemoryInStep":  # as above
        return Verdict("oom_gpu", short, rank)
    if kind == "oom_gpu":
        return Verdict(kind, f"{_short_of(rank, error.message, raised)} {_GPU_MEMORY_ADVICE}", rank)
    if kind == "oom_cpu":
        return Verdict(kind, f"Rank {rank} ran out of main memory ({raised}).", rank)
    if kind == "gpu_fault":
        return Verdict(kind, f"The GPU of rank {rank} reported a fault ({raised}).", rank)
    return Verdict("user_error", f"The script raised {raised} on rank {rank}.", rank)


def _killed(ending: Ending) -> Verdict | None:
    """A rank ended by a signal; torchrun's SIGTERM of its siblings is never the cause."""
    rank = _first(ending, lambda code: code < 0 and -code != signal.SIGTERM)
    if rank is None and not any(code > 0 for code in _codes(ending).values()):
        rank = _first(ending, lambda code: code < 0)
    if rank is None:
        return None
    number = -_codes(ending)[rank]
    name = _signal_name(number)
    kind = _kind_of_text(ending.tails.get(rank, "")) if number == signal.SIGABRT else None
    if kind == "oom_gpu":
        return Verdict(kind, f"Rank {rank} ran out of GPU memory and aborted. {_GPU_MEMORY_ADVICE}", rank)
    if kind is not None:
        return Verdict(kind, f"Rank {rank} aborted; the end of its log tells why.", rank)
    if number == signal.SIGKILL and ending.oom_killed:
        return Verdict(
            "oom_cpu", f"The kernel killed rank {rank} because the machine was out of main memory.", rank
        )
    if number == signal.SIGKILL:
        return Verdict("signal", f"Rank {rank} was killed by SIGKILL from outside of Berth.", rank)
    return Verdict("signal", f"Rank {rank} was ended by {name}{_SIGNAL_HINTS.get(number, '')}.", rank)


def _launcher_failed(ending: Ending) -> Verdict | None:
    """Nothing of the script ever ran."""
    if ending.started_ranks > 0 or ending.top is None:
        return None
    last = _last_line(ending.launcher_tail)
    if ending.top < 0:
        return Verdict(
            "signal", f"The run was ended by {_signal_name(-ending.top)} before the script started."
        )
    return Verdict("infra", f"The run could not be started: {last or f'exit code {ending.top}, no message'}.")


def _exited(ending: Ending) -> Verdict | None:
    rank = _first(ending, lambda code: code > 0)
    if rank is None:
        return None
    code = _codes(ending)[rank]
    return Verdict("user_error", f"The script ended with exit code {code} on rank {rank}.", rank)


def _top_died(ending: Ending) -> Verdict | None:
    if ending.top is None or ending.top == 0:
        return None
    if ending.top < 0:
        return Verdict(
            "signal", f"The process that starts the ranks was ended by {_signal_name(-ending.top)}."
        )
    return Verdict(
        "infra", f"The ranks' starter ended with exit code {ending.top}: {_last_line(ending.launcher_tail)}"
    )


_RULES = (
    _infra,
    _finished,
    _stopped,
    _over_memory,
    _over_limit,
    _hung,
    _launcher_failed,
    _raised,
    _killed,
    _exited,
    _top_died,
)
_NO_ROOM = re.compile(r"\[Errno 28\]|No space left on device")
_MAY_BE_LIMITS = ("user_error", "signal", "infra")
_GPU_MEMORY_ADVICE = "A smaller micro-batch, activation checkpointing or FSDP needs less."
_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGSEGV: " (a crash in native code)",
    signal.SIGBUS: " (often /dev/shm is full: use fewer data-loader workers)",
    signal.SIGILL: " (a library built for another processor)",
}


def _codes(ending: Ending) -> dict[int, int]:
    """Known codes, the first failure first."""
    codes = dict(ending.codes)
    for rank in range(ending.ranks):
        code = ending.code(rank)
        if rank not in codes and code is not None:
            codes[rank] = code
    return codes


def _first(ending: Ending, matches: Callable[[int], bool]) -> int | None:
    return next((rank for rank, code in _codes(ending).items() if matches(code)), None)


def _is_cause(code: int) -> bool:
    return code < 0 and -code != signal.SIGTERM


def _peer_lost(error: RankError) -> bool:
    return error.exception.rpartition(".")[2] in _PEER_EXCEPTIONS or bool(_PEER_LOST.search(error.message))


def _kind_of_text(text: str) -> str | None:
    if _GPU_MEMORY.search(text):
        return "oom_gpu"
    if _GPU_FAULT.search(text):
        return "gpu_fault"
    return "oom_cpu" if _CPU_MEMORY.search(text) else None


def _short_of(rank: int, message: str, raised: str) -> str:
    found = _GPU_MEMORY_SHORT.search(message)
    if found is None:
        return f"Rank {rank} ran out of GPU memory ({raised})."
    needed, total, free = found.groups()
    return f"Rank {rank} ran out of GPU memory: it needed {needed} more, and {free} of the device's {total} were free."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
