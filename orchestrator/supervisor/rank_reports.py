"""How each rank ended, as far as the ranks, torchrun and our starter wrote it down.

The run can write into these files too, so everything is read with a limit and without following links.
"""

import json
import os
import re
from pathlib import Path

from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.records import read_record

_TAIL_BYTES = 1 << 16
_MOST_LOST_BYTES = 1 << 50  # the run can write there whatever it likes
# torch/distributed/elastic/multiprocessing/errors: _FAILURE_FORMAT_TEMPLATE
_TORCHRUN_FAILURE = re.compile(
    r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: \d+\)", re.MULTILINE
)


class RankError:
    """The Python exception that ended a rank."""

    __slots__ = ("exception", "message", "time_ns")

    def __init__(self, exception: str, message: str, time_ns: int) -> None:
        self.exception = exception  # the name of its class
        self.message = message
        self.time_ns = time_ns  # wall clock, to say which rank was first


def read_errors(folder: AttemptFolder, ranks: int) -> dict[int, RankError]:
    errors = {}
    for rank in range(ranks):
        record = read_record(folder.error(rank))
        error = parse_error(record) if record else None
        if error is not None:
            errors[rank] = error
    return errors


def parse_error(record: dict[str, object]) -> RankError | None:
    """torchrun's error record, which our entry extends by ``time_ns``; None where it has another shape."""
    message = record.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    name, colon, text = message["message"].partition(": ")
    try:
        time_ns = int(extra.get("time_ns") or int(extra.get("timestamp") or 0) * 1_000_000_000)
    except (TypeError, ValueError):
        time_ns = 0
    return RankError(name if colon else "Exception", text if colon else name, time_ns)


def read_finished(folder: AttemptFolder, ranks: int) -> dict[int, int]:
    """Exit codes of the ranks whose script returned."""
    codes = {}
    for rank in range(ranks):
        text = read_tail(folder.finished_marker(rank), 16).strip()
        if text.removeprefix("-").isdigit():
            codes[rank] = int(text)
    return codes


def read_lost_bytes(folder: AttemptFolder, ranks: int) -> dict[int, int]:
    """How much each rank could not log because the disk was full; ranks that lost nothing are left out."""
    lost = {}
    for rank in range(ranks):
        text = read_tail(folder.lost(rank), 32).strip()
        if text.isdecimal() and (count := min(int(text), _MOST_LOST_BYTES)):
            lost[rank] = count
    return lost


def read_exit_codes(folder: AttemptFolder, ranks: int) -> dict[int, int]:
    """Codes (negative: signal) by rank, first failure first, as torchrun or the starter reported them.

    Empty where they did not get to it, and after a success of torchrun.
    """
    codes = parse_exit_codes(read_tail(folder.launcher_log, _TAIL_BYTES))
    return {rank: code for rank, code in codes.items() if 0 <= rank < ranks}


def parse_exit_codes(text: str) -> dict[int, int]:
    for line in reversed(text.splitlines()):
        if line.startswith('{"berth_ranks"'):
            return _starter_codes(line)
    root_cause = text.rfind("Root Cause (first observed failure):")
    if root_cause < 0:
        return {}
    start = text.rfind("\nFailures:", 0, root_cause)
    found = _TORCHRUN_FAILURE.findall(text[root_cause:]) + _TORCHRUN_FAILURE.findall(
        text[max(start, 0) : root_cause]
    )
    return {int(rank): int(code) for rank, code in found}


def _starter_codes(line: str) -> dict[int, int]:
    try:
        ended = json.loads(line)["berth_ranks"]
        codes = {int(rank): int(code) for rank, code in ended}
    except (ValueError, TypeError, KeyError):
        return {}
    return dict(
        sorted(codes.items(), key=lambda item: item[1] == 0)
    )  # stable: failures first, in their order


def read_tail(path: Path, limit_bytes: int) -> str:
    """The last bytes of a file as text; empty where there is no such regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, limit_bytes, max(0, size - limit_bytes)).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
