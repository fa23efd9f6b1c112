"""Becomes a command that may write only where it is told.

Runs inside the sandbox by file path: ``PYTHON -I -S confine.py COUNT WRITABLE... COMMAND...``; nothing of the job's
own has run before it.
"""

import os
import sys


def main(arguments: list[str]) -> None:
    from orchestrator.supervisor.landlock import restrict

    count = int(arguments[0])
    restrict(arguments[1 : count + 1])
    command = arguments[count + 1 :]
    os.execv(command[0], command)  # noqa: S606 -- the command line is a list, no shell


if __name__ == "__main__":
    # Three folders up; pathlib would take longer to load than all the rest.
    sys.path.insert(0, __file__.rsplit("/", 3)[0])
    main(sys.argv[1:])
