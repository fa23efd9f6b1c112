"""What a script missed that its owner can give it: files beside it, a package, a variable of the environment."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.verdict.rank_reports import RankError

_MODULE = re.compile(r"No module named '(\w{1,100})'")
_RELATIVE = re.compile(r"No such file or directory: '([^/'][^']{0,999})'")
# A folder of the machine, which a job does not change: "/data/out", "/root/results".
_READ_ONLY = re.compile(r"\[Errno 30\] Read-only file system: '(/[^']{1,999})'")
_FRAME = 'File "'
_OF_ENVIRON = re.compile(r'(?:<frozen os>|[^"\n]{0,400}/os\.py)", line \d{1,6}, in __getitem__\n')
_TRACEBACK = "Traceback (most recent call last):"
_VARIABLE = re.compile(r"'([A-Za-z_]\w{0,199})'")
_OF_BERTH = ("BERTH_",)


def explain_missing(launch: Launch, errors: Iterable[RankError]) -> dict[str, str] | None:
    """What is missing, by what it is: ``variable``, ``module``, or ``alone``, the script that was uploaded alone.

    ``unwritable`` is a path outside of the job's folders, at which it may not write.
    """
    for error in errors:
        if path := _unwritable(launch, error):
            return {"unwritable": path}
        if variable := _missing_variable(error):
            return {"variable": variable}
        module = _missing_module(launch, error)
        if module is None and not _missed_file(error):
            continue
        found = {"module": module} if module else {}
        if script := _lone_script(launch):
            found["alone"] = script
        return found or None
    return None


def _missing_variable(error: RankError) -> str | None:
    variable = _VARIABLE.fullmatch(error.message.strip()) if error.exception == "KeyError" else None
    if variable is None or variable[1].startswith(_OF_BERTH):
        return None
    own = error.trace.rpartition(_TRACEBACK)[2]  # without earlier exceptions
    last_frame = own.rpartition(_FRAME)[2]
    return variable[1] if _OF_ENVIRON.match(last_frame) else None


def _missing_module(launch: Launch, error: RankError) -> str | None:
    """The package or the file that an import named; none if the upload has it, or an image has the packages."""
    module = _MODULE.match(error.message) if error.exception == "ModuleNotFoundError" else None
    if module is None or launch.image is not None:
        return None
    places = {launch.work, launch.cwd}
    has = any(os.path.lexists(place / name) for place in places for name in (module[1], f"{module[1]}.py"))
    return None if has else module[1]


def _unwritable(launch: Launch, error: RankError) -> str | None:
    """The path at which the script failed to write; a read that is denied is another matter."""
    refused = _READ_ONLY.search(error.message) if error.exception == "OSError" else None
    if refused is None:
        return None
    own = (launch.work, launch.output, launch.checkpoints)
    return None if any(Path(refused[1]).is_relative_to(folder) for folder in own) else refused[1]


def _missed_file(error: RankError) -> bool:
    return error.exception == "FileNotFoundError" and _RELATIVE.search(error.message) is not None


def _lone_script(launch: Launch) -> str | None:
    """The script if nothing else is in the job's folder, but what Python and hidden files leave there."""
    if launch.starts_as != "script" or "/" in launch.script:
        return None
    try:
        names = {entry.name for entry in os.scandir(launch.work)}
    except OSError:
        return None
    others = {name for name in names if not name.startswith(".") and name != "__pycache__"}
    return launch.script if others == {Path(launch.script).name} else None
