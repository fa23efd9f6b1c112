"""What the log of a command tells about its end: its launcher knows the ranks' ends, the supervisor only its own.

The last lines are read like an exit record of torchrun's: a signal that ended a rank, or the exception that a script
raised.
"""

import re
from typing import NamedTuple

from orchestrator.supervisor.verdict.rank_reports import RankError, parse_exit_codes

TAIL_BYTES = 1 << 16
IGNORED_CHARS = 400  # before a traceback: "Exception ignored in: <function ...>"
_MOST_RANK = 4096
# A child that a signal ended, in the words of its launcher: subprocess of Python (accelerate), then DeepSpeed's.
_CHILD_DEATHS = (
    re.compile(r"died with <Signals\.\w+: (\d{1,9})>"),
    re.compile(r"exits with return code = -(\d{1,9})\b"),
)
# The first rank that failed, and its exit code as a shell gives it: horovodrun; a signal: mpirun (Open MPI).
_FIRST_OF_HOROVOD = re.compile(r"^Process name: (\d{1,9})\nExit code: (\d{1,9})$", re.MULTILINE)
_FIRST_OF_MPI = re.compile(
    r"noticed that process rank (\d{1,9}) with PID \d+ on node \S+ exited on signal (\d{1,9})\b"
)
# torch and horovodrun write the rank before each line of a traceback. Each line has one reading only: a pattern over
# many lines would take exponential time.
_OF_RANK = re.compile(r"\[rank(\d{1,9})\]:(?: |$)|\[(\d{1,9})\]<stderr>:")
_HEADER = "Traceback (most recent call last):"
_RAISED = re.compile(r"([A-Za-z_][\w.<>]*)(?:: (.*))?")
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# What torch (today, 2, 1), DeepSpeed, wandb and bars write between the end of a rank and that of its launcher.
OF_LAUNCHER = re.compile(
    r"(?:\[rank\d+\]:)?\[?[EWI]\d{4} |\[20[^\]]{1,40}\] (?:torch\.|\[\w{1,20}\] \[launch\.py:)"
    r"|[A-Z]{4,8}:torch\.|\[launch\.py:|wandb: |.{0,200}%\|"
)
OF_TRAINING = re.compile(r"\b(?:epoch|step|iter(?:ation)?|loss|batch)\b", re.IGNORECASE)
_FAILED = re.compile(r"returned non-zero exit status (\d+)")
_PYTHON_FAILED = "1"  # the status after an exception
_IGNORED = re.compile(r"Exception ignored (?:in|while)\b")  # "while" since Python 3.14
_RULE = re.compile(r"={20,}")  # torchrun's report stands between two
# Exceptions of launchers: what they report is the end of a rank.
OF_LAUNCHERS = frozenset(
    {"ChildFailedError", "CalledProcessError", "SignalException", "ProcessExitedException"}
)
_WORDS_OF_HOROVOD = "Horovod detected that one or more processes exited"
_OF_SANDBOX = re.compile(r"bwrap: (?!execvp )")
_SHELL_SIGNAL = 128  # and more: the exit code of a shell whose program a signal ended


class Traceback(NamedTuple):
    """A traceback in a log, from its header to the line that names the exception."""

    rank: int | None  # None: the log does not say
    name: str
    message: str
    start: int
    end: int


def tracebacks(text: str) -> list[Traceback]:
    """All complete tracebacks of a log, in the order in which they end; reads each line once."""
    complete = []
    # By rank, since ranks may mix: the start of the header, and the lines since then.
    open_at: dict[int | None, tuple[int, int]] = {}
    end = -1
    for line in text.split("\n"):
        start, end = end + 1, end + 1 + len(line)
        prefix = _OF_RANK.match(line)
        rank = min(int(prefix[1] or prefix[2]), _MOST_RANK - 1) if prefix else None
        words = line[prefix.end() :] if prefix else line
        if words == _HEADER:
            open_at[rank] = (start, 0)
        elif rank not in open_at:
            continue
        elif not words or words[0] in " \t":
            open_at[rank] = (open_at[rank][0], open_at[rank][1] + 1)
        else:
            header, frames = open_at.pop(rank)
            if frames and (raised := _RAISED.fullmatch(words)):
                name = raised[1].rpartition(".")[2]
                complete.append(Traceback(rank, name, raised[2] or "", header, end))
    return complete


def read(text: str) -> tuple[dict[int, int], dict[int, RankError]]:
    """Exit codes by rank (negative: a signal), first failure first, and the exception that ended a rank.

    Args:
        text: the last lines of the log of a command that failed.
    """
    codes = {rank: code for rank, code in parse_exit_codes(text).items() if 0 <= rank < _MOST_RANK}
    if not codes:
        codes = _first_death(text[-4096:])
    if any(code < 0 and code not in (-6, -15) for code in codes.values()):
        return codes, {}  # exceptions are consequences, but for an abort's
    first = next(iter(codes), 0)
    return codes, _last_error(text, first)


def last_raised(text: str) -> tuple[RankError | None, str]:
    """The last exception of a log and the text behind it; none and all of the text if Python only ignored it."""
    last = next(reversed(tracebacks(text)), None)
    if last is None or _IGNORED.search(text[: last.start].rpartition("\n\n")[2][-IGNORED_CHARS:]):
        return None, text
    return RankError(last.name, last.message, 0, text[last.start : last.end]), text[last.end :]


def signal_named(message: str) -> int:
    """The signal that ended a program, as the message of its launcher's exception tells; 0 if none."""
    codes = parse_exit_codes(message) or _first_death(message[-4096:])
    return next((-code for code in codes.values() if code < 0), 0)


def cause_of_launcher(text: str) -> RankError | None:
    """The exception above that of a launcher, with which a log ends.

    One that the training went on after was handled, and so was any if the program ended with another status than
    Python's after an exception.
    """
    found = tracebacks(text)
    below = None
    for at in reversed(range(len(found))):
        if below is not None:
            status = _FAILED.search(below.message)
            failed_otherwise = status is not None and status[1] != _PYTHON_FAILED
            if failed_otherwise or _went_on(text[found[at].end : below.start]):
                return None
        below = found[at]
        if below.name not in OF_LAUNCHERS:
            return (
                RankError(below.name, below.message, 0, _trace(text, found, at))
                if at + 1 < len(found)
                else None
            )
    return None


def is_of_sandbox(text: str) -> bool:
    """Whether all of a log is what bubblewrap says when it cannot make a sandbox; a program that is missing is not."""
    lines = text.splitlines()
    return bool(lines) and all(_OF_SANDBOX.match(line) for line in lines)


def _first_death(text: str) -> dict[int, int]:
    """The signal that ended a rank, by its rank; rank 0 where the launcher names none."""
    if found := _FIRST_OF_MPI.findall(text):
        rank, signal = map(int, found[0])
        return {rank: -signal} if rank < _MOST_RANK else {}
    if found := _FIRST_OF_HOROVOD.findall(text):
        rank, code = map(int, found[-1])
        return {rank: _SHELL_SIGNAL - code} if code > _SHELL_SIGNAL and rank < _MOST_RANK else {}
    for pattern in _CHILD_DEATHS:
        if found := pattern.findall(text):
            return {0: -int(found[-1])}
    return {}


def _last_error(text: str, first_rank: int) -> dict[int, RankError]:
    """The last exception of a script, by its rank; an earlier one may have been handled."""
    found = tracebacks(text)
    for at in reversed(range(len(found))):
        last = found[at]
        if last.name not in OF_LAUNCHERS and not last.message.startswith(_WORDS_OF_HOROVOD):
            rank = first_rank if last.rank is None else last.rank
            return {rank: RankError(last.name, last.message, 0, _trace(text, found, at))}
    return {}


def _trace(text: str, found: list[Traceback], at: int) -> str:
    """A traceback with the tracebacks of its causes."""
    start = found[at].start
    for earlier in reversed(found[:at]):
        if earlier.rank == found[at].rank:
            above = "\n".join(
                _OF_RANK.sub("", line) for line in text[max(0, start - 200) : start].splitlines()
            )
            if not above.rstrip().endswith(_CHAINED):
                break
            start = earlier.start
    return text[start : found[at].end]


def _went_on(text: str) -> bool:
    """Whether the training went on between two tracebacks, or the second one came of handling the first."""
    in_report = False
    for line in text.splitlines():
        if _RULE.fullmatch(line):
            in_report = not in_report
            continue
        of_training = not in_report and OF_TRAINING.search(line) and not OF_LAUNCHER.match(line)
        if of_training or line.strip().endswith(_CHAINED):
            return True
    return False
