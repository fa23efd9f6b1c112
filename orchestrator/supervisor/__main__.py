"""Runs the supervisor of one attempt: ``PYTHON -I -S .../orchestrator/supervisor [--detach] ATTEMPT_FOLDER``.

Reads secrets as one JSON object from standard input.  With ``--nursery``, forks a supervisor for each request that arrives
on the socket given as standard input; the argument after it only reserves room for the supervisors' command lines.
"""

import os
import sys


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--detach"]:
        # Fork before any import: the caller waits for this process only, and is left without a zombie.
        if os.fork() > 0:
            os._exit(0)
        os.setsid()
        arguments = arguments[1:]
    nursery = arguments[:1] == ["--nursery"]
    if len(arguments) != 1 and not nursery:
        sys.stderr.write("usage: python -m orchestrator.supervisor [--detach] ATTEMPT_FOLDER\n")
        return 2
    here = os.path.abspath(__file__)  # noqa: PTH100 -- before pathlib is loaded
    sys.path.insert(0, here.rsplit("/", 3)[0])  # started by path with -I, Python would not find our packages

    if nursery:
        import socket

        from orchestrator.supervisor.nursery import serve

        serve(socket.socket(fileno=0), here)
        return 0

    from pathlib import Path

    from orchestrator.supervisor.protocol.folder import AttemptFolder
    from orchestrator.supervisor.supervise import supervise

    supervise(AttemptFolder(Path(arguments[0]).absolute()), secrets_fd=0)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
