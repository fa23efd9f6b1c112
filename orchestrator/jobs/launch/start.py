"""How a run starts: its Python, where the programs of commands are found, and what its ranks execute."""

import os
import posixpath
import sys
from pathlib import Path
from typing import TypedDict

from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Pool
from orchestrator.spec.job_spec import JobSpec
from orchestrator.supervisor.ranks.command import SYSTEM_PATH

PROJECT, SETUP_CFG = "pyproject.toml", "setup.cfg"
PROJECT_FILES = (PROJECT, SETUP_CFG, "setup.py")  # any of them makes a folder a project
SRC = "src"  # a project with this folder has its packages below it


class CannotLaunch(OrchestratorError):
    """The attempt cannot be started, and a retry would not help."""

    code = "cannot_launch"
    status = 422


class Started(TypedDict):
    """What a run executes, as its launch record says it."""

    starts_as: str  # script, module or command
    script: str  # the script's path, the module's name, or the program
    args: list[str]


def python_of(pool: Pool, spec: JobSpec) -> str:
    """The path of the interpreter that runs the job; a name must be registered with the pool.

    Raises:
        CannotLaunch: the pool's interpreter is gone.
    """
    if spec.python is None:
        return sys.executable
    path = pool.pythons.get(spec.python)
    if not path or not os.access(path, os.X_OK):
        raise CannotLaunch(f"Pool {pool.pk}'s interpreter {spec.python!r} is no longer there.")
    return str(path)


def program_folders(python: str) -> list[str]:
    """Where a command's program is searched, in order: beside the job's Python, then in the system's folders."""
    return [str(Path(python).parent), *SYSTEM_PATH.split(":")]


def find_program(name: str, folders: list[str]) -> Path | None:
    """The program of a name without a folder; None if none of the folders has it."""
    places = (Path(folder, name) for folder in folders)
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def started(spec: JobSpec, arguments: list[str], command: list[str]) -> Started:
    """What the ranks of a script or module execute, or what is executed once for a command.

    Args:
        arguments: of the job, with all placeholders filled.
        command: of the job, likewise.
    """
    if command:
        return {"starts_as": "command", "script": command[0], "args": [*command[1:], *arguments]}
    if spec.module is not None:
        return {"starts_as": "module", "script": spec.module, "args": arguments}
    return {"starts_as": "script", "script": script_path(spec), "args": arguments}


def script_path(spec: JobSpec) -> str:
    """The path of the job's script, from the folder that it runs in."""
    return posixpath.relpath(spec.script_name, spec.folder)
