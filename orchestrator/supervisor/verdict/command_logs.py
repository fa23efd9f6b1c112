"""What the log of a command tells about its end: its launcher knows the ranks' ends, the supervisor only its own.

The last lines are read like an exit record of torchrun's: a signal that ended a rank, or the exception that a script
raised.
"""

import re

from orchestrator.supervisor.verdict.rank_reports import RankError, parse_exit_codes

TAIL_BYTES = 1 << 16
LAST_WORDS_CHARS = 200  # after the last exception of a log: "exiting", "done"
IGNORED_CHARS = 400  # before a traceback: "Exception ignored in: <function ...>"
CAUSE_BYTES = 4096  # before a traceback: that of the exception that caused it
_MOST_RANK = 4096
# A child that a signal ended, in the words of its launcher: subprocess of Python (accelerate), then DeepSpeed's.
_CHILD_DEATHS = (
    re.compile(r"died with <Signals\.\w+: (\d+)>"),
    re.compile(r"exits with return code = -(\d+)"),
)
# The first rank that failed, and its exit code as a shell gives it: horovodrun; a signal: mpirun (Open MPI).
_FIRST_OF_HOROVOD = re.compile(r"^Process name: (\d+)\nExit code: (\d+)$", re.MULTILINE)
_FIRST_OF_MPI = re.compile(r"noticed that process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")
# The first line of a traceback, its frames, and the line that names the exception; torch and horovodrun write the rank
# before each.
_RANK = r"(?:\[rank\d+\]: *|\[\d+\]<stderr>:)?"
_TRACEBACK = re.compile(
    r"^(?:\[rank(?P<number>\d+)\]: *|\[(?P<process>\d+)\]<stderr>:)?Traceback \(most recent call last\):\n"
    rf"(?:{_RANK}[ \t].*\n|\n)+"
    rf"{_RANK}(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$",
    re.MULTILINE,
)
# Exceptions of launchers: what they report is the end of a rank.
OF_LAUNCHERS = frozenset(
    {"ChildFailedError", "CalledProcessError", "SignalException", "ProcessExitedException"}
)
_WORDS_OF_HOROVOD = "Horovod detected that one or more processes exited"
_OF_SANDBOX = re.compile(r"bwrap: (?!execvp )")
_SHELL_SIGNAL = 128  # and more: the exit code of a shell whose program a signal ended


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


def last_printed(text: str) -> RankError | None:
    """The exception with which a log ends, although its script went on: it was caught and printed, or ended a thread.

    Not one that Python ignored while it cleaned up.
    """
    hit = next(reversed(list(_TRACEBACK.finditer(text))), None)
    if hit is None or len(text) - hit.end() > LAST_WORDS_CHARS:
        return None
    if "Exception ignored in" in text[: hit.start()].rpartition("\n\n")[2][-IGNORED_CHARS:]:
        return None
    return RankError(hit["name"].rpartition(".")[2], hit["message"] or "", 0)


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
    for hit in reversed(list(_TRACEBACK.finditer(text))):
        name = hit["name"].rpartition(".")[2]
        message = hit["message"] or ""
        if name not in OF_LAUNCHERS and not message.startswith(_WORDS_OF_HOROVOD):
            number = hit["number"] or hit["process"]
            rank = min(int(number), _MOST_RANK - 1) if number else first_rank
            return {rank: RankError(name, message, 0, text[max(0, hit.start() - CAUSE_BYTES) : hit.end()])}
    return {}
