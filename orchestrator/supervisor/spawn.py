"""Starts a detached supervisor from a long-lived worker."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_record, read_tail

_PROGRAM = Path(__file__).with_name("__main__.py")
_DEADLINE_S = 2.0
_POLL_S = 0.001
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SpawnFailed(Exception):
    """No supervisor appeared in time.  It may still start: only a free lock proves that none will."""


def spawn(folder: AttemptFolder, *, python: str, secrets: Mapping[str, str]) -> int:
    """Start the attempt's supervisor and return its pid once it has written its identity.

    The supervisor is not our child: it leaves no zombie, and survives the end of this process and its session.  If
    the attempt has a supervisor already, starts nothing and returns the pid of that one.

    Raises:
        SpawnFailed: the supervisor did not appear within two seconds.
        OSError: ``python`` cannot be executed, or the folder cannot be written.
    """
    folder.logs.mkdir(mode=0o700, exist_ok=True)
    started = _start(folder, python)
    _send_secrets(started, secrets)
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


def _send_secrets(started: subprocess.Popen[bytes], secrets: Mapping[str, str]) -> None:
    assert started.stdin is not None  # noqa: S101 -- requested as a pipe
    try:
        with started.stdin as pipe:
            pipe.write(json.dumps(dict(secrets)).encode())
    except BrokenPipeError:
        pass  # exited without reading: another supervisor has the attempt, or it failed


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
