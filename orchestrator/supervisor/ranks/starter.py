"""Starts all ranks of one server without torchrun's agent (``launcher: direct``).

Runs inside the sandbox by file path: ``PYTHON -I -S starter.py RANKS PORT COMMAND...``.  Like torchrun, ends the other
ranks once one fails.  The last line of output lists the exit code of each rank.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

_PATIENCE_S = 30.0  # torchrun's own time between SIGTERM and SIGKILL


def main(ranks: int, port: int, command: list[str]) -> int:
    """Run the ranks to their end; returns 0 if all returned 0, else 1."""
    running = {_start(rank, ranks, port, command): rank for rank in range(ranks)}
    ended: list[tuple[int, int]] = []  # rank and code (negative: signal), in order of their ends
    deadline: float | None = None
    while running:
        pid, status = _wait(deadline)
        if pid == 0:
            _signal(running, signal.SIGKILL)
            deadline = None
            continue
        rank = running.pop(pid, None)
        if rank is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and not any(other for _, other in ended):
            _signal(running, signal.SIGTERM)
            deadline = time.monotonic() + _PATIENCE_S
        ended.append((rank, code))
    sys.stdout.write(json.dumps({"berth_ranks": ended}) + "\n")
    return 1 if any(code for _, code in ended) else 0


def _start(rank: int, ranks: int, port: int, command: list[str]) -> int:
    from orchestrator.supervisor.ranks.command import rank_environment

    environment = os.environ | rank_environment(rank, ranks, port)
    return os.posix_spawn(command[0], command, environment, setsid=True)


def _wait(deadline: float | None) -> tuple[int, int]:
    """(0, 0) once the deadline has passed."""
    if deadline is None:
        return os.waitpid(-1, 0)
    while time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            return pid, status
        time.sleep(0.02)
    return 0, 0


def _signal(pids: dict[int, int], number: int) -> None:
    for pid in pids:  # our own unreaped children keep their pids
        os.kill(pid, number)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
