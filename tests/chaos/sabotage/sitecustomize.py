"""Bends every process of Berth that is started with this folder on PYTHONPATH: its controls, and its clock.

Only for tests/chaos.  A control is switched off to show that a campaign notices when it is missing.  The clock on
the wall is put forward and back by a file; libfaketime would be the tool, but its 0.9.10 breaks the sleep of
Python 3.11.  Nothing of Berth reads these variables, so no installation can be switched by them.
"""

import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any


def _without_number(liveness: Any) -> None:
    """Whatever lies there as an exit record counts, whichever attempt it is of."""
    liveness._is_of = lambda record, launch: record is not None


def _without_manifest(checkpoints: Any) -> None:
    checkpoints.verify_files = lambda generation: None


def _without_sweep(sweeps: Any) -> None:
    sweeps.Sweeper.run_errands = sweeps.Sweeper.pass_in_time = lambda self, now: None


def _without_nonce(liveness: Any) -> None:
    liveness.with_nonce = lambda nonce: []


def _without_origin(access: Any) -> None:
    access.is_same_origin = lambda headers, *, secure: True


def _without_walls(sandbox: Any) -> None:
    """As on a machine without bubblewrap: no control of ours, but what the nonce is for."""
    sandbox.probe = lambda: sandbox.Probe(0, "taken away")


PATCHES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "number": ("orchestrator.supervisor.liveness", _without_number),
    "manifest": ("orchestrator.store.checkpoints.generations", _without_manifest),
    "sweep": ("orchestrator.agent.sweeps", _without_sweep),
    "nonce": ("orchestrator.supervisor.liveness", _without_nonce),
    "origin": ("dashboard.live.passes", _without_origin),
    "walls": ("orchestrator.supervisor.sandbox.bwrap", _without_walls),
}


class _Finder:
    """Finds the modules to patch as Python would, and patches them once they were executed."""

    def __init__(self, patches: dict[str, list[Callable[[Any], None]]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patches = self._patches.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if patches else None
        if patches is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            for patch in patches:
                patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]  # of this one instance
        return spec


def _install(names: Sequence[str]) -> None:
    wanted: dict[str, list[Callable[[Any], None]]] = {}
    for name in names:
        module, patch = PATCHES[name]
        wanted.setdefault(module, []).append(patch)
    sys.meta_path.insert(0, _Finder(wanted))


def _bend_clock(path: str) -> Callable[[Any], None]:
    """Add the seconds in a file to the time of day; clocks that only run forward stay as they are."""
    real = time.time

    def offset_s() -> float:
        try:
            with open(path) as file:  # noqa: PTH123  # pathlib is not worth its import in each process
                return float(file.read())
        except (OSError, ValueError):
            return 0.0

    time.time = lambda: real() + offset_s()

    def patch(timezone: Any) -> None:
        timezone.now = lambda: datetime.now(tz=UTC) + timedelta(seconds=offset_s())

    return patch


if "BERTH_CHAOS_CLOCK" in os.environ:
    PATCHES["clock"] = ("django.utils.timezone", _bend_clock(os.environ["BERTH_CHAOS_CLOCK"]))
    _install(["clock"])
_install([name for name in os.environ.get("BERTH_CHAOS_WITHOUT", "").split(",") if name])
