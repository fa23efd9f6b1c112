"""Starts one child the way a rank wants to be started: own session, clean signals, limits."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from orchestrator.supervisor.kernel import die_with_parent

IGNORED_BY_SUPERVISOR = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE)
_OPEN_FILES = 65536
_GOES_FIRST = b"500"  # to the kernel's out-of-memory killer, before any process of Berth


def start_child(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path,
    log: Path,
    open_files: int | None,
    keep_fds: Sequence[int] = (),
    join: Sequence[Path] = (),
) -> int:
    """Start ``argv``, with its output in ``log``; the pid, once it runs.

    It is killed when the calling thread ends.  Only the single-threaded supervisor may call this: it forks.

    Raises:
        OSError: it cannot be executed; ``filename`` says what.
    """
    failed, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(argv, environment, folder, log, open_files, keep_fds, join, report)
    os.close(report)
    message = _read_all(failed)
    os.close(failed)
    if message:
        os.waitpid(pid, 0)
        number, _, path = message.decode(errors="replace").partition(" ")
        raise OSError(int(number), os.strerror(int(number)), path)
    return pid


def _become(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    open_files: int | None,
    keep_fds: Sequence[int],
    join: Sequence[Path],
    report: int,
) -> NoReturn:
    """In the child: turn into ``argv``, or tell ``report`` why not."""
    try:
        die_with_parent(signal.SIGKILL)
        os.setsid()
        for group in join:  # control groups, before anything is started: whatever follows is inside
            group.write_text("0")
        _restore_signals()
        _set_limits(open_files)
        _redirect(log)
        for fd in keep_fds:
            os.set_inheritable(fd, True)
        os.chdir(folder)
        os.execve(argv[0], list(argv), dict(environment))  # noqa: S606 -- the command line is a list, no shell
    except OSError as error:
        os.write(report, f"{error.errno or 0} {error.filename or argv[0]}".encode())
    finally:
        os._exit(127)


def _restore_signals() -> None:
    for number in IGNORED_BY_SUPERVISOR:  # what is ignored stays ignored over exec
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _set_limits(open_files: int | None) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = open_files or _OPEN_FILES
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft if open_files else hard))
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    try:
        os.write(fd, _GOES_FIRST)
    except PermissionError:  # our own value is higher already
        pass
    finally:
        os.close(fd)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 4096):
        data += chunk
    return data
