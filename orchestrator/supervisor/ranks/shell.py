"""Starts what lets the owner of a run into its sandbox (``orchestrator.shells``), one for each connection."""

import os
import sys
from pathlib import Path

from orchestrator.supervisor.linux.processes import children
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.protocol.records import write_record
from orchestrator.supervisor.ranks.child import start_child
from orchestrator.supervisor.ranks.command import SYSTEM_PATH
from orchestrator.supervisor.ranks.run import Run

PROGRAM = Path(__file__).resolve().parents[2] / "shells" / "__main__.py"
MOST = 8  # each takes about 40 MB of the run's memory


def open_shell(run: Run | None, launch: Launch, folder: AttemptFolder, token: str) -> str | None:
    """Start the way in; None, or why there is none.

    Raises:
        OSError: the program cannot be started.
    """
    top = run.top() if run is not None else None
    if run is None or top is None:
        return "The run is not there yet, or just ending."
    if count_open(os.getpid()) >= MOST:
        return f"{MOST} connections to this run are open already."
    folder.shells.mkdir(mode=0o700, exist_ok=True)
    start_child(
        [sys.executable, "-I", str(PROGRAM), str(folder.root), token, str(top.pid)],
        # The nonce lets leftovers be found, should this supervisor die.
        {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "BERTH_NONCE": launch.nonce},
        folder=Path("/"),
        log=folder.supervisor_log,
        open_files=launch.open_files,
        join=run.group.join_files if run.group is not None else (),
    )
    return None


def refuse(folder: AttemptFolder, token: str, why: str) -> None:
    """Tell the client that waits for this way in.

    Raises:
        OSError: the record could not be written.
    """
    folder.shells.mkdir(mode=0o700, exist_ok=True)
    write_record(folder.shell_refusal(token), {"why": why})


def count_open(supervisor: int) -> int:
    """Ways into the run of a supervisor: each ends up as its child, adopted from the process that entered the sandbox."""
    mine = f"{PROGRAM}\0".encode()
    return sum(mine in _command_line(pid) for pid in children(supervisor))


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
