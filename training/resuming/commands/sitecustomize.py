"""What Python runs at its start in the processes of a job's command: lets its trainers resume, as the entry does.

Its folder comes first on their path, so a ``sitecustomize`` of the environment or the system is run as well.
"""

import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- each Python of a command runs this


def _watch_trainers() -> None:
    """Watch imports by the same finder as the entry of a rank."""
    package = ModuleType("_berth_rooms")
    package.__path__ = [os.path.dirname(os.path.dirname(_FOLDER))]  # noqa: PTH120
    sys.modules[package.__name__] = package
    from _berth_rooms.entry import watch_trainers  # type: ignore[import-not-found]  # made just now

    watch_trainers()


def _run_the_next_one() -> None:
    """Run the ``sitecustomize`` that Python would have found without ours."""
    others = [path for path in sys.path if os.path.abspath(path) != _FOLDER]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(ModuleType("sitecustomize"))


try:
    _watch_trainers()
except Exception as error:  # noqa: BLE001 -- the command must work without us
    sys.stderr.write(f"Berth does not resume trainers by itself: {type(error).__name__}: {error}\n")
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]  # noqa: PTH100
_run_the_next_one()
