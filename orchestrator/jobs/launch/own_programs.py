"""Programs that a job's own project declares in its pyproject.toml, as ``pip install`` would make them."""

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.jobs.launch.start import PROJECT
from orchestrator.store.files.untrusted import open_beneath

MOST_BYTES = 1 << 20  # of one file
_TABLES = (("project", "scripts"), ("tool", "poetry", "scripts"))
# "pkg.cli:main", "pkg.cli:app.run", both with extras behind them
_ENTRY_POINT = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*(?:\[[^\]]*\])?\s*")
_START = "import sys; {path}sys.argv[0] = {program!r}; from {module} import {first}; sys.exit({function}())"
# Behind all others, as an editable installation does it: a random.py of the project hides no module of Python's.
_PATH = "import os; sys.path.append(os.path.abspath({place!r})); "


def python_command(command: Sequence[str], folder: str, bundle: Path) -> list[str] | None:
    """The command by which Python runs a program of the project; None if the project has none of this name.

    Args:
        command: the program and its arguments.
        folder: of the upload, in which the job runs; its project goes before the one of the whole upload.
        bundle: the folder of the job's code.
    """
    program, *arguments = command
    if "/" in program:
        return None
    for place in dict.fromkeys([folder, "."]):
        entry = _entry_point(text_of(bundle, f"{place}/{PROJECT}"), program)
        if entry is not None:
            module, function = entry
            first = function.partition(".")[0]
            path = "" if place == folder else _PATH.format(place=os.path.relpath(place, folder))
            start = _START.format(path=path, program=program, module=module, first=first, function=function)
            return ["python", "-c", start, *arguments]
    return None


def text_of(bundle: Path, name: str) -> str:
    """The text of a file of the job's code; empty without one."""
    try:
        with open(open_beneath(bundle, name), "rb") as file:  # noqa: PTH123 -- a descriptor
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _entry_point(text: str, program: str) -> tuple[str, str] | None:
    """The module and the function that a project's program calls."""
    try:
        project: Any = tomllib.loads(text)
    except (ValueError, RecursionError):  # ValueError: no TOML, or a number of too many digits
        return None
    for names in _TABLES:
        table = project
        for name in names:
            table = table.get(name) if isinstance(table, dict) else None
        target = table.get(program) if isinstance(table, dict) else None
        match = _ENTRY_POINT.fullmatch(target) if isinstance(target, str) else None
        if match is not None:
            return match[1], match[2]
    return None
