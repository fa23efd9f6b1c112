"""Why a script does not find a file that its author sees: the sandbox hides the home of the user that runs Berth."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.supervisor.launch import Launch
from orchestrator.supervisor.rank_reports import RankError
from orchestrator.supervisor.sandbox import needed

_QUOTED = re.compile(r"'(/[^']+)'")


def explain_unseen(launch: Launch, errors: Iterable[RankError]) -> str | None:
    """What to do about a path that no job sees.

    Whether something is there is not looked up: who may not read that home may not ask it either.
    """
    if launch.level == 0:
        return None
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 -- unlike Path.home it never fails
    shown = (launch.home, *launch.read_only, *needed(launch))  # what is missing there is just missing
    for error in errors:
        if error.exception != "FileNotFoundError":
            continue
        for path in _QUOTED.findall(error.message):
            if Path(path).is_relative_to(home) and not any(Path(path).is_relative_to(each) for each in shown):
                return (
                    f"Jobs do not see {home}, the home of the user that runs Berth; "
                    "register the data as a dataset (berth data add) and name it in the job."
                )
    return None
