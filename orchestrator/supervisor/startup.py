"""Prepares a supervisor before it starts a run: signals, lock, folders, secrets."""

import errno
import fcntl
import json
import os
import signal
import time

from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import BadLaunch
from orchestrator.supervisor.ranks.child import IGNORED_BY_SUPERVISOR

_LOCK_PATIENCE_S = 0.1  # a reader that tests the lock holds it for microseconds


def ignore_signals() -> None:
    """Ignore signals: only orders end a supervisor, so that restarts of Berth's services do not end trainings."""
    for number in IGNORED_BY_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD})  # awaited by sigtimedwait


def take_lock(folder: AttemptFolder) -> int | None:
    """The descriptor that holds the attempt's lock; None if another supervisor holds it."""
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                raise
            if time.monotonic() >= deadline_s:
                os.close(lock)
                return None
            time.sleep(0.01)
        else:
            return lock


def make_folders(folder: AttemptFolder) -> None:
    for path in (folder.orders, folder.logs, folder.errors, folder.finished, folder.media):
        path.mkdir(mode=0o700, exist_ok=True)
    folder.metrics.touch(mode=0o600, exist_ok=True)


def read_secrets(fd: int) -> dict[str, str]:
    """The JSON object of secrets on this pipe.

    Raises:
        BadLaunch: the pipe holds something else, or nothing: who started us died before it could write them.
    """
    if os.isatty(fd):
        return {}
    data = b""
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    if not data:
        raise BadLaunch("the process that launched the run ended before it had handed over the secrets")
    try:
        secrets = json.loads(data)
    except ValueError:
        secrets = None
    if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
        raise BadLaunch("the secrets handed to the supervisor are not a JSON object of texts")
    return secrets
