"""Judges how an attempt ended: its kind, the first failure and the facts for people.

Pure; ``_RULES`` lists the rules in order of precedence.
"""

import re
import signal
from collections.abc import Callable
from typing import TypedDict

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact
from orchestrator.supervisor.ranks.program import EXCEPTION as COMMAND_NOT_STARTED
from orchestrator.supervisor.verdict import command_logs
from orchestrator.supervisor.verdict.ending import Ending, rank_rows
from orchestrator.supervisor.verdict.error_texts import (
    amounts_of,
    asked_for_input,
    asked_for_terminal,
    child_killed,
    kind_of_text,
    lacked_cuda,
    lacked_room,
    peer_lost,
    raised_text,
    taken_port,
)
from orchestrator.supervisor.verdict.last_words import adds_nothing, last_complaint, last_printed, last_words
from orchestrator.supervisor.verdict.rank_reports import RankError

# How argparse, and how click and typer end a script that was called with wrong options.
_WRONG_USE = re.compile(r"(?:\S{1,99}: error|Error): (.{1,400})")
KIND_OF_STOP = {
    "cancel": "cancelled",
    "timeout": "timeout",
    "preempt": "preempted",
    "shutdown": "preempted",
    "lease": "preempted",
    "gang": "infra",
    "policy": "cancelled",
    "memory": "oom_gpu",
    "gpu_fault": "gpu_fault",
}


class Verdict:
    """The kind of an end, its facts, and the rank that failed first."""

    def __init__(self, kind: str, how: Fact, first_rank: int | None = None) -> None:
        self.kind = kind
        self.how = how
        self.first_rank = first_rank

    def add(self, **facts: object) -> None:
        self.how = fact(self.how.code, **self.how.facts, **facts)


def classify(ending: Ending) -> Verdict:
    for rule in _RULES:
        verdict = rule(ending)
        if verdict is not None:
            if ending.at_limit and verdict.kind in _MAY_BE_LIMITS:
                verdict.add(met=ending.at_limit)
            if verdict.kind == "user_error" and _lacked_room(ending):
                verdict.kind = "infra"
                verdict.add(disk_full=True)
            return verdict
    return Verdict("infra", fact(Ended.NO_TRACE))


def _lacked_room(ending: Ending) -> bool:
    """Whether the disk was full, not by the script's own limit: the same code may work once there is room."""
    if ending.over_limit is not None:
        return False
    return ending.disk_full or any(lacked_room(error.message) for error in ending.errors.values())


class FirstFailure(TypedDict):
    """The rank that failed first, in the exit record."""

    rank: int
    code: int | None
    signal: int | None
    exception: str | None
    message: str | None


def first_failure(ending: Ending, verdict: Verdict) -> FirstFailure | None:
    if verdict.first_rank is None:
        return None
    row = next(row for row in rank_rows(ending) if row["rank"] == verdict.first_rank)
    error = ending.errors.get(verdict.first_rank)
    return {
        "rank": verdict.first_rank,
        "code": row["code"],
        "signal": row["signal"],
        "exception": error.exception if error else None,
        "message": error.message if error else None,
    }


def ended_by_peers(ending: Ending) -> bool:
    """Whether all that is known of the end is that ranks elsewhere were gone."""
    return bool(ending.errors) and all(peer_lost(error) for error in ending.errors.values())


def _infra(ending: Ending) -> Verdict | None:
    return Verdict("infra", fact(Ended.SUPERVISOR_FAILED, error=ending.infra)) if ending.infra else None


def _finished(ending: Ending) -> Verdict | None:
    """A run whose ranks all returned has finished, even during a stop.

    Not if a rank caught our signal first: it returned because it was asked to.
    """
    if ending.stop_heard:
        return None
    if len(ending.finished) == ending.ranks and not any(ending.finished.values()):
        return Verdict("ok", _finished_how(ending))
    if ending.top == 0 and not ending.stop_reason and not any(ending.finished.values()):
        return Verdict("ok", _finished_quietly(ending))
    return None


def _finished_quietly(ending: Ending) -> Fact:
    """The end of a run with exit code 0; processes may have run on, and the log may say that the script did not get through."""
    facts: dict[str, object] = {"left": ending.left} if ending.left else {}
    if printed := last_printed(ending.tails.get(ending.numbers[0], "")):
        facts["printed"] = raised_text(printed)
    return fact(Ended.FINISHED, **facts)


def _finished_how(ending: Ending) -> Fact:
    """How the run finished; an error after the script returned does not affect its result."""
    if ending.unreaped:
        return fact(Ended.FINISHED_UNNOTICED, unnoticed=ending.unreaped)
    aborted = [rank for rank, code in ending.codes.items() if code < 0]
    if not aborted and (ending.top is None or ending.top >= 0):
        return _finished_quietly(ending)
    number = -ending.codes[aborted[0]] if aborted else -(ending.top or 0)
    return fact(Ended.FINISHED_THEN_ABORTED, signal=number)


def _stopped(ending: Ending) -> Verdict | None:
    if ending.stop_reason is None:
        return None
    how = fact(Ended.STOPPED, reason=ending.stop_reason, outlasted_s=ending.stop_outlasted_s)
    return Verdict(KIND_OF_STOP[ending.stop_reason], how)


def _over_memory(ending: Ending) -> Verdict | None:
    return Verdict("oom_cpu", ending.over_memory) if ending.over_memory else None


def _over_limit(ending: Ending) -> Verdict | None:
    return Verdict("user_error", ending.over_limit) if ending.over_limit else None


def _hung(ending: Ending) -> Verdict | None:
    if not ending.hang:
        return None
    returned = sorted(ending.finished)
    verdict = Verdict("hang", ending.hang)
    if returned and len(returned) < ending.ranks:
        verdict.add(left=returned)
    return verdict


def _raised(ending: Ending) -> Verdict | None:
    own = {rank: error for rank, error in ending.errors.items() if not peer_lost(error)}
    if not own and any(_is_cause(code) for code in ending.codes.values()):
        return None  # the exceptions are consequences of a killed rank
    errors = own or ending.errors
    if not errors:
        return None
    rank = min(errors, key=lambda other: errors[other].time_ns)
    return _judge(ending, rank, errors[rank], raised_text(errors[rank]))


def _judge(ending: Ending, rank: int, error: RankError, raised: str) -> Verdict:
    """The verdict on an exception that ended a rank; ``raised`` says it in one line."""
    short = error.message.strip().splitlines()[0][:300] if error.message.strip() else ""
    kind = kind_of_text(f"{error.exception}: {error.message}")
    if error.exception == "MemoryError":
        kind = "oom_cpu"
    if error.exception == COMMAND_NOT_STARTED:
        return Verdict("user_error", fact(Ended.COMMAND_NOT_STARTED, message=short), rank)
    if error.exception == "RankHangs":  # found and ended by the training library
        return Verdict("hang", fact(Ended.HANG_REPORTED, message=short), rank)
    if error.exception.rpartition(".")[2] == "OutOfMemoryInStep":  # likewise
        return Verdict("oom_gpu", fact(Ended.GPU_MEMORY_REPORTED, message=short), rank)
    if kind == "oom_gpu":
        how = fact(Ended.GPU_MEMORY, rank=rank, error=raised, **amounts_of(error.message))
        return Verdict(kind, how, rank)
    if kind == "oom_cpu":
        return Verdict(kind, fact(Ended.MAIN_MEMORY, rank=rank, error=raised), rank)
    if kind == "gpu_fault":
        return Verdict(kind, fact(Ended.GPU_FAULT, rank=rank, error=raised), rank)
    if child_killed(error):
        return _child_killed(ending, rank)
    if error.exception in command_logs.OF_LAUNCHERS and (verdict := _started_failed(ending, rank, error)):
        return verdict
    if error.exception == "SystemExit":  # sys.exit("why"), whose exit code is always 1
        return Verdict("user_error", fact(Ended.EXITED, rank=rank, exit_code=1, message=short), rank)
    verdict = Verdict("user_error", fact(Ended.RAISED, error=raised, rank=rank), rank)
    if (port := taken_port(raised)) is not None:
        verdict.kind = "infra"  # the same code works once the other program has ended
        verdict.add(port=port)
    if asked_for_input(error):
        verdict.add(asked=True)
    elif asked_for_terminal(error):
        verdict.add(lacks="terminal")
    elif lacked_cuda(error):
        verdict.add(lacks="cuda")
    return verdict


def _started_failed(ending: Ending, rank: int, error: RankError) -> Verdict | None:
    """Why a program failed that a script had started: by its message or the end of its log; None if they do not say."""
    number = command_logs.signal_named(error.message)
    if number == signal.SIGKILL:
        return _child_killed(ending, rank)
    cause = None if number else command_logs.cause_of_launcher(ending.tails.get(rank, ""))
    if cause is None:
        return None
    return _judge(ending, rank, cause, f"{raised_text(cause)} ({error.exception})")


def _child_killed(ending: Ending, rank: int) -> Verdict:
    if ending.oom_killed:
        return Verdict("oom_cpu", fact(Ended.KERNEL_KILLED, rank=rank, child=True), rank)
    return Verdict("signal", fact(Ended.KILLED, rank=rank, child=True), rank)


def _unreaped(ending: Ending) -> Verdict | None:
    """A stopped caretaker; a rank's own failure takes precedence."""
    if not ending.unreaped or any(ending.finished.values()):
        return None
    return Verdict("infra", ending.unreaped)


def _killed(ending: Ending) -> Verdict | None:
    """A rank ended by a signal; torchrun's SIGTERM to its siblings is never the cause."""
    rank = _first(ending, lambda code: code < 0 and -code != signal.SIGTERM)
    if rank is None and not any(code > 0 for code in _codes(ending).values()):
        rank = _first(ending, lambda code: code < 0)
    if rank is None:
        return None
    number = -_codes(ending)[rank]
    kind = kind_of_text(ending.tails.get(rank, "")) if number == signal.SIGABRT else None
    if kind == "oom_gpu":
        return Verdict(kind, fact(Ended.GPU_MEMORY_ABORTED, rank=rank), rank)
    if kind is not None:
        return Verdict(kind, fact(Ended.ABORTED, rank=rank), rank)
    if number == signal.SIGKILL and ending.oom_killed:
        return Verdict("oom_cpu", fact(Ended.KERNEL_KILLED, rank=rank), rank)
    if number == signal.SIGKILL:
        return Verdict("signal", fact(Ended.KILLED, rank=rank), rank)
    return Verdict("signal", fact(Ended.SIGNALLED, rank=rank, signal=number), rank)


def _launcher_failed(ending: Ending) -> Verdict | None:
    """The script never ran."""
    if ending.started_ranks > 0 or ending.top is None:
        return None
    last = _last_line(ending.launcher_tail)
    if ending.top < 0:
        return Verdict("signal", fact(Ended.SIGNALLED_BEFORE_START, signal=-ending.top))
    return Verdict("infra", fact(Ended.NOT_STARTED, exit_code=ending.top, message=last))


def _exited(ending: Ending) -> Verdict | None:
    rank = _first(ending, lambda code: code > 0)
    if rank is None:
        return None
    printed, behind = command_logs.last_raised(ending.tails.get(rank, ""))
    if printed is not None and adds_nothing(behind):  # caught, printed, and then sys.exit(1)
        return _judge(ending, rank, printed, raised_text(printed))
    verdict = Verdict("user_error", fact(Ended.EXITED, rank=rank, exit_code=_codes(ending)[rank]), rank)
    last_line = last_words(behind)
    if told := _WRONG_USE.fullmatch(last_line):
        verdict.add(message=told[1][:300].strip())
    elif words := last_complaint(behind) or last_line:
        verdict.add(printed=words)
    return verdict


def _top_died(ending: Ending) -> Verdict | None:
    if ending.top is None or ending.top == 0:
        return None
    if ending.top < 0:
        return Verdict("signal", fact(Ended.STARTER_SIGNALLED, signal=-ending.top))
    message = _last_line(ending.launcher_tail)
    return Verdict("infra", fact(Ended.STARTER_EXITED, exit_code=ending.top, message=message))


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


def _codes(ending: Ending) -> dict[int, int]:
    """Known codes, first failure first."""
    codes = dict(ending.codes)
    for rank in ending.numbers:
        code = ending.code(rank)
        if rank not in codes and code is not None:
            codes[rank] = code
    return codes


def _first(ending: Ending, matches: Callable[[int], bool]) -> int | None:
    return next((rank for rank, code in _codes(ending).items() if matches(code)), None)


def _is_cause(code: int) -> bool:
    return code < 0 and -code != signal.SIGTERM


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
