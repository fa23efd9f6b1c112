"""Reads what ranks, torchrun and our starter reported about their ends.

The run can write to these files too, so all reads are limited and follow no links.
"""

import json
import re
from collections.abc import Collection, Iterable

from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import Record, read_record, read_tail

_TAIL_BYTES = 1 << 16
_MOST_LEFT = 100_000
_MOST_LOST_BYTES = 1 << 50  # the run may write any number there
# torch/distributed/elastic/multiprocessing/errors: _FAILURE_FORMAT_TEMPLATE
_TORCHRUN_FAILURE = re.compile(
    r"^ *rank +: (\d{1,9}) \(local_rank: \d+\)\n *exitcode +: (-?\d{1,9}) \(pid: \d+\)", re.MULTILINE
)


class RankError:
    """The Python exception that ended a rank."""

    __slots__ = ("exception", "message", "time_ns", "trace")

    def __init__(self, exception: str, message: str, time_ns: int, trace: str = "") -> None:
        self.exception = exception  # the name of its class
        self.message = message
        self.time_ns = time_ns  # wall clock, to find the first failure
        self.trace = trace  # its traceback, with the tracebacks of its causes


def read_errors(folder: AttemptFolder, ranks: Iterable[int]) -> dict[int, RankError]:
    errors = {}
    for rank in ranks:
        record = read_record(folder.error(rank))
        error = parse_error(record) if record else None
        if error is not None:
            errors[rank] = error
    return errors


def parse_error(record: Record) -> RankError | None:
    """Parse torchrun's error record, which our entry extends by ``time_ns``; None for any other shape."""
    message = record.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    name, colon, text = message["message"].partition(": ")
    try:
        time_ns = int(extra.get("time_ns") or int(extra.get("timestamp") or 0) * 1_000_000_000)
    except (TypeError, ValueError, OverflowError):
        time_ns = 0
    trace = str(extra.get("py_callstack") or "")
    return RankError(name if colon else "Exception", text if colon else name, time_ns, trace)


def read_finished(folder: AttemptFolder, ranks: Iterable[int]) -> dict[int, int]:
    """Exit codes of the ranks whose script returned."""
    codes = {}
    for rank in ranks:
        text = read_tail(folder.finished_marker(rank), 16).strip()
        if text.removeprefix("-").isdecimal():
            codes[rank] = int(text)
    return codes


def read_left(folder: AttemptFolder, ranks: Iterable[int]) -> int:
    """How many processes ran on when the ranks exited."""
    texts = (read_tail(folder.left(rank), 16).strip() for rank in ranks)
    return sum(min(int(text), _MOST_LEFT) for text in texts if text.isdecimal())


def read_lost_bytes(folder: AttemptFolder, ranks: Iterable[int]) -> dict[int, int]:
    """Bytes that each rank could not log because the disk was full; leaves out ranks without a loss."""
    lost = {}
    for rank in ranks:
        text = read_tail(folder.lost(rank), 32).strip()
        if text.isdecimal() and (count := min(int(text), _MOST_LOST_BYTES)):
            lost[rank] = count
    return lost


def read_exit_codes(folder: AttemptFolder, ranks: Collection[int]) -> dict[int, int]:
    """Codes (negative: signal) by rank, first failure first, as reported by torchrun or the starter.

    Empty if they reported nothing, and after a success of torchrun.
    """
    codes = parse_exit_codes(read_tail(folder.launcher_log, _TAIL_BYTES))
    return {rank: code for rank, code in codes.items() if rank in ranks}


def parse_exit_codes(text: str) -> dict[int, int]:
    for line in reversed(text.splitlines()):
        if line.startswith('{"berth_ranks"'):
            return _starter_codes(line)
    root_cause = text.rfind("Root Cause (first observed failure):")
    if root_cause < 0:
        return {}
    start = text.rfind("\nFailures:", 0, root_cause)
    failures = _TORCHRUN_FAILURE.findall(text[root_cause:]) + _TORCHRUN_FAILURE.findall(
        text[max(start, 0) : root_cause]
    )
    return {int(rank): int(code) for rank, code in failures}


def _starter_codes(line: str) -> dict[int, int]:
    try:
        ended = json.loads(line)["berth_ranks"]
        codes = {int(rank): int(code) for rank, code in ended}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {}
    failures_first = sorted(
        codes.items(), key=lambda item: item[1] == 0
    )  # stable: keeps the order of failures
    return dict(failures_first)
