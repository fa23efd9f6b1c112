"""Becomes a job's command: ``PYTHON -I -S program.py PROGRAM ARGS...``.

Runs inside the sandbox by file path.  Sends the output of the command, and of everything it starts, to the log of
rank 0, then executes the program; one that cannot be executed is reported like an exception of rank 0.
"""

# No pathlib: this is between every command and its first line.
# ruff: noqa: PTH101, PTH110, PTH113, PTH123

import errno
import os
import sys
from typing import NoReturn

NOT_EXECUTED = 127  # as shells have it
EXCEPTION = "CommandNotStarted"
_OURS = (
    "BERTH_DIE_WITH_PARENT",
    "BERTH_STACKS_ON_SIGUSR2",
)  # of training/entry.py


def main(command: list[str]) -> NoReturn:
    """Execute the command; returns only as its exit."""
    folder = os.environ["BERTH_ATTEMPT_FOLDER"]
    log = os.open(f"{folder}/logs/rank0.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in _OURS:
        os.environ.pop(name, None)
    try:
        _make_executable(command[0])
        os.execvp(command[0], command)  # noqa: S606 -- a list of words, no shell
    except OSError as error:
        sentence = why_not(command[0], error)
        os.write(2, f"{sentence}\n".encode(errors="replace"))
        _report(folder, sentence)
    os._exit(NOT_EXECUTED)


def why_not(program: str, error: OSError) -> str:
    """What is wrong with the program, and what to do."""
    if error.errno == errno.ENOEXEC:
        return f"{program} does not begin with #!, so nothing says what runs it; start it as bash {program}."
    if error.errno != errno.ENOENT:
        return f"{program} cannot be executed: {error.strerror}."
    if "/" not in program:
        folders = os.environ.get("PATH", "").split(":")
        return f"There is no program {program}, neither beside the job's Python ({folders[0]}) nor in the system."
    if os.path.exists(program):
        return f"The program that the first line of {program} names is not there."
    return f"There is no file {program}."


def _make_executable(program: str) -> None:
    """Uploads carry no modes, so a file of the job's own folder may be executed without having been marked so."""
    if "/" in program and os.path.isfile(program) and not os.access(program, os.X_OK):
        try:
            os.chmod(program, 0o700)
        except OSError:
            return  # not ours: executing it tells why not


def _report(folder: str, sentence: str) -> None:
    """Write the record where the supervisor looks for exceptions of ranks."""
    import json
    import time

    extra = {"py_callstack": "", "time_ns": str(time.time_ns())}
    text = json.dumps({"message": {"message": f"{EXCEPTION}: {sentence}", "extraInfo": extra}})
    with open(f"{folder}/errors/rank0.json", "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
