"""Starts a detached supervisor from a long-lived worker."""

import fcntl
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.supervisor.linux.scopes import scope_command, scope_environment
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_record, read_tail

_PROGRAM = Path(__file__).with_name("__main__.py")
_DEADLINE_S = 2.0
_POLL_S = 0.001
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SpawnFailed(Exception):
    """No supervisor appeared in time.  It may still start: only a free lock proves that none will."""


def spawn(folder: AttemptFolder, *, python: str, secrets: Mapping[str, str]) -> int:
    """Start the attempt's supervisor and return its pid once it has written its identity.

    The supervisor is not our child: it leaves no zombie, and survives the end of this process and its session.  Where
    systemd runs the machine it is in a scope of its own, so that it survives the end of our service as well.  If
    the attempt has a supervisor already, starts nothing and returns the pid of that one.

    Raises:
        SpawnFailed: the supervisor did not appear within two seconds.
        OSError: ``python`` cannot be executed, or the folder cannot be written.
    """
    folder.logs.mkdir(mode=0o700, exist_ok=True)
    command = [python, "-I", "-S", str(_PROGRAM), "--detach", str(folder.root)]
    in_scope = scope_command(_scope_name(folder), command)
    if in_scope is None or not _run(folder, in_scope, secrets, scope_environment()):
        # A manager that refuses the scope must not keep a job from starting.
        _run(folder, command, secrets, {})
    return _wait_for_identity(folder)


def is_starting(folder: AttemptFolder) -> bool:
    """Whether a process that ``spawn`` started may still become the supervisor: it holds the log that it was given."""
    try:
        with folder.supervisor_log.open("r+b") as log:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _scope_name(folder: AttemptFolder) -> str:
    """A name for ``systemctl``; each start has its own, so that one that is left over refuses nothing."""
    job, number = folder.root.parents[1].name, folder.root.name
    return f"berth-{_UNSAFE.sub('-', f'{job}-{number}')}-{os.getpid()}-{time.monotonic_ns()}"


def _run(
    folder: AttemptFolder, command: list[str], secrets: Mapping[str, str], variables: Mapping[str, str]
) -> bool:
    """Start the supervisor, which leaves for the background once it has forked; False if it did not start."""
    with folder.supervisor_log.open("ab") as log:
        # Inherited with the log: free once neither we nor the supervisor are there.
        fcntl.flock(log, fcntl.LOCK_SH)
        started = subprocess.Popen(  # noqa: S603 -- our own program, arguments as a list
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": os.environ.get("PATH", _SYSTEM_PATH), "LANG": "C.UTF-8", **variables},
            start_new_session=True,
        )
    _send_secrets(started, secrets)
    return started.wait() == 0


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
