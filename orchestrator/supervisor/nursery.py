"""A process that has loaded what a supervisor needs, and forks one for each attempt.

A supervisor that starts by itself spends some 50 ms of a processor on loading; a fork takes 2 ms and shares the memory.
The process belongs to the one that started it (``spawn``) and ends with it, but its supervisors do not.  It reads no
secret: the pipe that holds them passes through it.
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from orchestrator.supervisor.linux.kernel import show_as
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import log_exception
from orchestrator.supervisor.ranks.child import IGNORED_BY_SUPERVISOR
from orchestrator.supervisor.supervise import supervise
from orchestrator.supervisor.verdict import hiding

_LONGEST_BYTES = 1 << 16
_DESCRIPTORS = 2  # the log, and the pipe of secrets
_FIRST_OTHER = 3  # the first descriptor behind standard input, output and error


def serve(requests: socket.socket, program: str) -> None:
    """Answer each request once its supervisor is on its own, until the other end of the socket is closed.

    Args:
        requests: packets that hold an attempt's folder, with the descriptors of the supervisor's log and secrets.
        program: path of the supervisor's program, which lists of processes show.
    """
    for number in IGNORED_BY_SUPERVISOR:  # as a supervisor does: our owner ends us
        signal.signal(number, signal.SIG_IGN)
    # Where our owner ignores the ends of its children, we would, too, and could not wait for ours.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _show_as([sys.executable, "-I", "-S", program, "--nursery"])
    hiding.load()
    gc.freeze()  # or the first collection of each supervisor would copy what it shares
    while True:
        try:
            request, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_BYTES, _DESCRIPTORS)
        except ConnectionResetError:  # our owner was killed before it had read an answer
            return
        if not request:
            return
        is_started = len(descriptors) == _DESCRIPTORS and _fork(os.fsdecode(request), descriptors, program)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(OSError):  # our owner has ended; the next turn sees it
            requests.send(b"started" if is_started else b"failed")


def _fork(folder: str, descriptors: list[int], program: str) -> bool:
    """Fork a supervisor that is not our child; False if there is no room for another process.

    The intermediate process ends at once, which leaves the supervisor to init.
    """
    try:
        intermediate = os.fork()
    except OSError:
        log_exception()
        return False
    if intermediate:
        return os.waitpid(intermediate, 0)[1] == 0
    status = 1
    try:
        if os.fork() == 0:
            _become_supervisor(folder, descriptors, program)
        status = 0
    except OSError:
        log_exception()
    finally:
        os._exit(status)


def _become_supervisor(folder: str, descriptors: list[int], program: str) -> NoReturn:
    status = 1
    try:
        os.setsid()
        log, secrets = descriptors
        for number, descriptor in enumerate((secrets, log, log)):
            os.dup2(descriptor, number)
        os.closerange(_FIRST_OTHER, max(descriptors) + 1)
        _show_as([sys.executable, "-I", "-S", program, folder])
        supervise(AttemptFolder(Path(folder)), secrets_fd=0)
        status = 0
    except BaseException:  # noqa: BLE001 -- nobody is above us; `spawn` reads the log
        log_exception()
    finally:
        os._exit(status)


def _show_as(command: Sequence[str]) -> None:
    with suppress(OSError, IndexError, ValueError):  # a kernel that does not tell where its command line is
        show_as(command)
