"""Starts a child as a rank needs it: own session, clean signals, resource limits."""

import os
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from orchestrator.supervisor.linux.kernel import die_with_parent
from orchestrator.supervisor.linux.processes import ProcessId

IGNORED_BY_SUPERVISOR = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE)
_OPEN_FILES = 65536
_GOES_FIRST = b"500"  # score for the out-of-memory killer: killed before any process of Berth
# Since Linux 5.14 RLIMIT_NPROC counts the processes of a user within a user namespace.  Older kernels count all
# processes of the user on the machine: one job would use up the limit of all others, and of Berth.
_COUNTS_BY_NAMESPACE = (5, 14)


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
    """Start ``argv`` with its output in ``log``, and return its pid once it runs.

    The kernel kills the child when the calling thread ends.  Forks, so only the single-threaded supervisor may call
    this.

    Raises:
        OSError: the program cannot be executed; ``filename`` names the file.
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
    """Become ``argv`` in the child, or write the error to ``report``."""
    try:
        die_with_parent(signal.SIGKILL)
        os.setsid()
        for group in join:  # join control groups first, so that all descendants are inside
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
    for number in IGNORED_BY_SUPERVISOR:  # ignored signals stay ignored after exec
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _set_limits(open_files: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = open_files or _OPEN_FILES
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft if open_files else hard))
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    try:
        os.write(fd, _GOES_FIRST)
    except PermissionError:  # our own score is higher already
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


def hold_processes(init: ProcessId, most: int) -> bool:
    """Limit the processes and threads below a sandbox's init, before it starts any.

    False if the kernel does not enforce the limit for a single run: before 5.14, and for root.
    """
    if os.getuid() == 0 or _kernel() < _COUNTS_BY_NAMESPACE:
        return False
    try:
        _, hard = resource.prlimit(init.pid, resource.RLIMIT_NPROC)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(init.pid, resource.RLIMIT_NPROC, (limit, limit))
    except OSError:  # init is gone: bubblewrap failed, and its output says why
        return False
    return limit == most


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
