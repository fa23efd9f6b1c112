"""Starts a detached supervisor from a long-lived worker."""

import atexit
import fcntl
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from orchestrator.supervisor.linux.scopes import scope_command, scope_environment
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_record, read_tail

_PROGRAM = Path(__file__).with_name("__main__.py")
_DEADLINE_S = 2.0
_POLL_S = 0.001
_TITLE_BYTES = 4096  # of a command line, for the longest path
_ANSWER_BYTES = 64
_STARTED = b"started"
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_Way = Callable[[int, int], bool]  # starts a supervisor with the descriptors of its log and of its secrets


class SpawnFailed(Exception):
    """No supervisor appeared in time.  It may still start: only a free lock proves that none will."""


def spawn(folder: AttemptFolder, *, python: str, secrets: Mapping[str, str]) -> int:
    """Start the attempt's supervisor and return its pid once it has written its identity.

    The supervisor is not our child: it leaves no zombie, and survives the end of this process and its session.  Where
    systemd gives it a scope of its own, it survives the end of our service as well; elsewhere it comes from this
    process's nursery.  If the attempt has a supervisor already, starts nothing and returns the pid of that one.

    Raises:
        SpawnFailed: the supervisor did not appear within two seconds.
        OSError: ``python`` cannot be executed, or the folder cannot be written.
    """
    folder.logs.mkdir(mode=0o700, exist_ok=True)
    command = [python, "-I", "-S", str(_PROGRAM), "--detach", str(folder.root)]
    in_scope = scope_command(_scope_name(folder), command)
    preferred: _Way
    if in_scope is None:
        preferred = partial(_start_in_nursery, python, folder)
    else:
        preferred = partial(_start_directly, in_scope, scope_environment())
    if not _start(folder, secrets, preferred):
        # Neither a broken nursery nor a manager that refuses the scope may keep a job from starting.
        _start(folder, secrets, partial(_start_directly, command, {}))
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


def _start(folder: AttemptFolder, secrets: Mapping[str, str], way: _Way) -> bool:
    """Start the supervisor, which leaves for the background, and hand it the secrets; False if it did not start."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        with os.fdopen(reading, "rb") as theirs, folder.supervisor_log.open("ab") as log:
            # Inherited with the log: free once neither we nor the supervisor are there.
            fcntl.flock(log, fcntl.LOCK_SH)
            is_started = way(log.fileno(), theirs.fileno())
        # In any case: a nursery that died before its answer may have forked the supervisor already.
        left = memoryview(json.dumps(dict(secrets)).encode())
        with suppress(BrokenPipeError):  # it ended unread: another supervisor has the attempt, or it failed
            while left:
                left = left[pipe.write(left) :]
    return is_started


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", _SYSTEM_PATH), "LANG": "C.UTF-8"}


def _start_directly(command: list[str], variables: Mapping[str, str], log: int, secrets: int) -> bool:
    started = subprocess.Popen(  # noqa: S603 -- our own program, arguments as a list
        command,
        stdin=secrets,
        stdout=log,
        stderr=log,
        cwd="/",
        env={**_environment(), **variables},
        start_new_session=True,
    )
    return started.wait() == 0


class _Nursery:
    """Our end of a process that forks supervisors; it ends with us."""

    def __init__(self, python: str) -> None:
        self.python, self.owner = python, os.getpid()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(_DEADLINE_S)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 -- our own program, arguments as a list
                [python, "-I", "-S", str(_PROGRAM), "--nursery", " " * _TITLE_BYTES],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )

    def start(self, folder: AttemptFolder, log: int, secrets: int) -> None:
        """Return once the supervisor of ``folder`` is on its own.

        Raises:
            OSError: the nursery is gone, does not answer, or could not fork.
        """
        socket.send_fds(self._requests, [os.fsencode(folder.root)], [log, secrets])
        answer = self._requests.recv(_ANSWER_BYTES)
        if answer != _STARTED:
            raise OSError(f"The nursery of supervisors answers {answer!r}.")

    def end(self) -> None:
        self._requests.close()
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()


_nursery: _Nursery | None = None
_nursery_lock = threading.Lock()


def _start_in_nursery(python: str, folder: AttemptFolder, log: int, secrets: int) -> bool:
    """Start the supervisor in the nursery of this process; False, with the nursery ended, if it does not answer."""
    global _nursery
    with _nursery_lock:
        if _nursery is not None and (_nursery.python, _nursery.owner) != (python, os.getpid()):
            end_nursery()
        try:
            _nursery = _nursery or _Nursery(python)
            _nursery.start(folder, log, secrets)
        except OSError:
            end_nursery()
            return False
        return True


@atexit.register
def end_nursery() -> None:
    """End the process that the next supervisors would come from; those that came stay."""
    global _nursery
    if _nursery is not None:
        _nursery.end()
        _nursery = None


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
