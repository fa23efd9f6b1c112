"""Lets a person into a running attempt: ``PYTHON -I .../orchestrator/shells ATTEMPT_FOLDER TOKEN PID``.

The supervisor starts one for each connection.  It listens on the socket ``shells/TOKEN`` of the attempt's folder, enters
the sandbox of the process ``PID``, serves one SSH connection and ends with it.  All modules are loaded before it enters,
because the server's own packages are not to be seen in there.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.supervisor.protocol.folder import AttemptFolder

_PATIENCE_S = 15.0  # for the server to connect


def main(arguments: list[str]) -> int:
    """Serve one connection; a failure is left as the record ``shells/TOKEN.json``."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # with -I, Python does not find our packages

    from orchestrator.shells import entering, ssh
    from orchestrator.supervisor.protocol.folder import AttemptFolder
    from orchestrator.supervisor.protocol.launch import read_launch
    from orchestrator.supervisor.protocol.records import write_record

    folder, token, pid = AttemptFolder(Path(arguments[0])), arguments[1], int(arguments[2])
    launch = read_launch(folder)
    environment = ssh.shell_environment(pid)
    server = ssh.prepare()
    result, report = os.pipe()
    listener = _listen(folder, token)
    if os.fork() == 0:
        os.close(result)
        try:
            if launch.level:
                entering.enter(pid)
                if os.fork():  # a process never enters a namespace of processes, only its children do
                    os._exit(0)
                entering.confine(launch, folder)
            os.chdir(launch.cwd)
        except OSError as error:
            os.write(report, str(error).encode())
            os._exit(1)
        os.close(report)
        asyncio.run(server.serve(listener, environment, _PATIENCE_S))
        os._exit(0)
    os.close(report)
    with os.fdopen(result, "rb") as pipe:
        failure = pipe.read().decode(errors="replace")
    if failure:
        write_record(folder.shell_refusal(token), {"why": failure})
    else:
        folder.shell_coming(token).rename(folder.shell_socket(token))
    return 0


def _listen(folder: "AttemptFolder", token: str) -> socket.socket:
    """A socket under a name that nobody connects to yet."""
    place = os.open(folder.shells, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # By the descriptor, since the kernel takes at most 107 bytes for a path.
        listener.bind(f"/proc/self/fd/{place}/{folder.shell_coming(token).name}")
    finally:
        os.close(place)
    listener.listen(1)
    listener.setblocking(False)
    return listener


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
