"""What the log of a command tells about its end: its launcher knows the ranks' ends, the supervisor only its own.

The last lines are read like an exit record of torchrun's: a signal that ended a rank, or the exception that a script
raised.
"""

import re

from orchestrator.supervisor.verdict.rank_reports import RankError, parse_exit_codes

TAIL_BYTES = 1 << 16
_MOST_RANK = 4096
# A child that a signal ended, in the words of its launcher: subprocess of Python (accelerate), then DeepSpeed's.
_CHILD_DEATHS = (
    re.compile(r"died with <Signals\.\w+: (\d+)>"),
    re.compile(r"exits with return code = -(\d+)"),
)
# The first line of a traceback, its frames, and the line that names the exception; torch writes the rank before each.
_TRACEBACK = re.compile(
    r"^(?P<rank>\[rank(?P<number>\d+)\]: *)?Traceback \(most recent call last\):\n"
    r"(?:(?:\[rank\d+\]: *)?[ \t].*\n|\n)+"
    r"(?:\[rank\d+\]: *)?(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$",
    re.MULTILINE,
)
# Exceptions of launchers: what they report is the end of a rank.
_OF_LAUNCHERS = frozenset(
    {"ChildFailedError", "CalledProcessError", "SignalException", "ProcessExitedException"}
)


def read(text: str) -> tuple[dict[int, int], dict[int, RankError]]:
    """Exit codes by rank (negative: a signal), first failure first, and the exception that ended a rank.

    Args:
        text: the last lines of the log of a command that failed.
    """
    codes = {rank: code for rank, code in parse_exit_codes(text).items() if 0 <= rank < _MOST_RANK}
    if not codes:
        codes = _child_death(text[-4096:])
    if any(code < 0 and code not in (-6, -15) for code in codes.values()):
        return codes, {}  # exceptions are consequences, but for an abort's
    first = next(iter(codes), 0)
    return codes, _last_error(text, first)


def _child_death(text: str) -> dict[int, int]:
    for pattern in _CHILD_DEATHS:
        if found := pattern.findall(text):
            return {0: -int(found[-1])}
    return {}


def _last_error(text: str, first_rank: int) -> dict[int, RankError]:
    """The last exception of a script, by its rank; an earlier one may have been handled."""
    for hit in reversed(list(_TRACEBACK.finditer(text))):
        name = hit["name"].rpartition(".")[2]
        if name not in _OF_LAUNCHERS:
            rank = min(int(hit["number"]), _MOST_RANK - 1) if hit["number"] else first_rank
            return {rank: RankError(name, hit["message"] or "", 0)}
    return {}
