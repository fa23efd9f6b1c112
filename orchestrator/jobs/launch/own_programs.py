"""Programs that a job's own project declares in pyproject.toml or setup.cfg, as ``pip install`` would make them."""

import configparser
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.jobs.launch.start import PROJECT, SETUP_CFG
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
        match = _ENTRY_POINT.fullmatch(_declared(bundle, place).get(program, ""))
        if match is not None:
            module, function = match[1], match[2]
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


def declared(bundle: Path, folder: str) -> list[str]:
    """The names of the programs that the projects of a folder and of the whole upload declare."""
    return sorted({name for place in {folder, "."} for name in _declared(bundle, place)})


def _declared(bundle: Path, place: str) -> dict[str, str]:
    """By program, what the project of a folder says that it calls."""
    programs = _of_setup_cfg(text_of(bundle, f"{place}/{SETUP_CFG}"))
    try:
        project: Any = tomllib.loads(text_of(bundle, f"{place}/{PROJECT}"))
    except (ValueError, RecursionError):  # ValueError: no TOML, or a number of too many digits
        return programs
    for names in reversed(_TABLES):
        table = project
        for name in names:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict):
            programs |= {name: target for name, target in table.items() if isinstance(target, str)}
    return programs


def _of_setup_cfg(text: str) -> dict[str, str]:
    """The programs of the older file of setuptools: lines ``x-train = x.cli:main`` below ``console_scripts``."""
    parser = configparser.ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=("#",))
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    lines = parser.get("options.entry_points", "console_scripts", fallback="").splitlines()
    parts = (line.partition("=") for line in lines)
    return {name.strip(): target for name, _, target in parts if name.strip()}
