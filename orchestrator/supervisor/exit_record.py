"""How an attempt ended: from what was seen to one kind, the first failure and a sentence for people.

Pure; the rules stand in their order of precedence in ``_RULES``.
"""

import signal
from collections.abc import Callable

from orchestrator.supervisor.ending import Ending, rank_rows
from orchestrator.supervisor.error_texts import (
    GPU_MEMORY_ADVICE,
    kind_of_text,
    lacked_room,
    peer_lost,
    short_of,
)

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
    return ending.disk_full or any(lacked_room(error.message) for error in ending.errors.values())


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
    if ending.unreaped:
        return f" {ending.unreaped} The script had returned before; the result is not touched."
    aborted = [rank for rank, code in ending.codes.items() if code < 0]
    if not aborted and (ending.top is None or ending.top >= 0):
        return ""
    number = -ending.codes[aborted[0]] if aborted else -(ending.top or 0)
    return f" After the script had returned, a process was ended by {_signal_name(number)}; the result is not touched."


def _stopped(ending: Ending) -> Verdict | None:
    if ending.stop_reason is None:
        return None
    sentence = _STOP_SENTENCES[ending.stop_reason]
    if ending.stop_outlasted_s is not None:
        sentence += f" It did not end within {round(ending.stop_outlasted_s, 1):g} s and was killed."
    return Verdict(KIND_OF_STOP[ending.stop_reason], sentence)


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
    own = {rank: error for rank, error in ending.errors.items() if not peer_lost(error)}
    if not own and any(_is_cause(code) for code in ending.codes.values()):
        return None  # the exceptions only tell that another rank was killed
    errors = own or ending.errors
    if not errors:
        return None
    rank = min(errors, key=lambda other: errors[other].time_ns)
    error = errors[rank]
    short = error.message.strip().splitlines()[0][:300] if error.message.strip() else ""
    raised = f"{error.exception}: {short}" if short else error.exception
    kind = kind_of_text(f"{error.exception}: {error.message}")
    if error.exception == "MemoryError":
        kind = "oom_cpu"
    if error.exception == "RankHangs":  # the training library found it and ended it
        return Verdict("hang", short, rank)
    if error.exception.rpartition(".")[2] == "OutOfMemoryInStep":  # as above
        return Verdict("oom_gpu", short, rank)
    if kind == "oom_gpu":
        return Verdict(kind, f"{short_of(rank, error.message, raised)} {GPU_MEMORY_ADVICE}", rank)
    if kind == "oom_cpu":
        return Verdict(kind, f"Rank {rank} ran out of main memory ({raised}).", rank)
    if kind == "gpu_fault":
        return Verdict(kind, f"The GPU of rank {rank} reported a fault ({raised}).", rank)
    return Verdict("user_error", f"The script raised {raised} on rank {rank}.", rank)


def _unreaped(ending: Ending) -> Verdict | None:
    """What a rank told of its own failure comes first."""
    if not ending.unreaped or any(ending.finished.values()):
        return None
    return Verdict("infra", ending.unreaped)


def _killed(ending: Ending) -> Verdict | None:
    """A rank ended by a signal; torchrun's SIGTERM of its siblings is never the cause."""
    rank = _first(ending, lambda code: code < 0 and -code != signal.SIGTERM)
    if rank is None and not any(code > 0 for code in _codes(ending).values()):
        rank = _first(ending, lambda code: code < 0)
    if rank is None:
        return None
    number = -_codes(ending)[rank]
    name = _signal_name(number)
    kind = kind_of_text(ending.tails.get(rank, "")) if number == signal.SIGABRT else None
    if kind == "oom_gpu":
        return Verdict(kind, f"Rank {rank} ran out of GPU memory and aborted. {GPU_MEMORY_ADVICE}", rank)
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
    _unreaped,
    _killed,
    _exited,
    _top_died,
)
_MAY_BE_LIMITS = ("user_error", "signal", "infra")
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
