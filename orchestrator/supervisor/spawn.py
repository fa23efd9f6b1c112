"""Starts a supervisor that nobody has to look after: for the launcher, inside a long-lived worker."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.rank_reports import read_tail
from orchestrator.supervisor.records import read_record

_PROGRAM = Path(__file__).with_name("__main__.py")
_DEADLINE_S = 2.0
_POLL_S = 0.001
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SpawnFailed(Exception):
    """No supervisor showed itself in time; it may still come, so only a free lock proves that none will."""


def spawn(folder: AttemptFolder, *, python: str, secrets: Mapping[str, str]) -> int:
    """Start the attempt's supervisor and return its pid once it has written who it is.

    It is no child of ours: no zombie is left, and neither our end nor that of our session touches it.  Where
    the attempt has a supervisor already, nothing is started and the pid is that one's.

    Raises:
        SpawnFailed: it did not show itself within two seconds.
        OSError: ``python`` cannot be executed, or the folder not be written.
    """
    folder.logs.mkdir(mode=0o700, exist_ok=True)
    started = _start(folder, python)
    _hand_over(started, secrets)
    started.wait()
    return _wait_for_identity(folder)


def _start(folder: AttemptFolder, python: str) -> subprocess.Popen[bytes]:
    with folder.supervisor_log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 -- our own program, arguments as a list
            [python, "-I", "-S", str(_PROGRAM), "--detach", str(folder.root)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": os.environ.get("PATH", _SYSTEM_PATH), "LANG": "C.UTF-8"},
            start_new_session=True,
        )


def _hand_over(started: subprocess.Popen[bytes], secrets: Mapping[str, str]) -> None:
    assert started.stdin is not None  # noqa: S101 -- it was asked for as a pipe
    try:
        with started.stdin as pipe:
            pipe.write(json.dumps(dict(secrets)).encode())
    except BrokenPipeError:
        pass  # it left without reading them: another supervisor has the attempt, or it failed


def _wait_for_identity(folder: AttemptFolder) -> int:
    deadline_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline_s:
        record = read_record(folder.supervisor)
        if record is not None and isinstance(record.get("pid"), int):
            return int(str(record["pid"]))
        if folder.exit.exists():  # the launch record was refused; the exit record says why
            return 0
        time.sleep(_POLL_S)
    last = read_tail(folder.supervisor_log, 4096).strip().splitlines()
    raise SpawnFailed(
        f"The supervisor of {folder.root} did not start within {_DEADLINE_S:g} s"
        + (f": {last[-1]}" if last else "; its log is empty.")
    )
