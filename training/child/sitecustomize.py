"""Loaded by each Python that a job's command starts, by ``PYTHONPATH``: the limit on GPU memory,
what trackers get, trainers that resume, and steps that are profiled.

A rank of a script has these from ``entry.py``; the ranks of a command are started by its own launcher.  Nothing here
may fail or print where Berth is not meant: pip, launchers and helpers of the command load this as well.
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH120 -- no pathlib: importing it would double the time to the first line

import importlib
import importlib.util
import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str) -> "ModuleType | None":
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return None


def _join() -> None:
    """Do what ``entry.py`` does before a script begins."""
    rooms = ModuleType("_berth_rooms")  # as entry.py names them
    rooms.__path__ = [os.path.dirname(_HERE)]
    sys.modules[rooms.__name__] = rooms
    importlib.import_module("_berth_rooms.rank.imports").join_command()


def _load_hidden() -> None:
    """Load the module of the same name that this one hid: the system's, or the environment's."""
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.isfile(path):
            _load("_berth_hidden_sitecustomize", path)
            return


if sys.version_info >= (3, 8) and os.environ.get("BERTH_ATTEMPT_FOLDER"):
    try:
        _join()
    except Exception as error:  # noqa: BLE001 -- the command must work without us
        sys.stderr.write("Berth reads no trackers and resumes no trainers here: %s\n" % error)  # noqa: UP031 -- any Python 3
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
_load_hidden()
