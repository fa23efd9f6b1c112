"""What is done once the script imports a package: hooks of trackers, trainers and optimizers, torch's memory limit.

Standard library only.
"""

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import os
import sys
from types import ModuleType

from . import FOLDER, RANK, TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

# Packages with functions that a room of ours wraps, once the script imports one of them.
TRACKERS = frozenset(
    {
        "wandb",
        "trackio",
        "mlflow",
        "comet_ml",
        "aim",
        "clearml",
        "tensorboardX",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "stable_baselines3",
    }
)
TORCH_TRACKER = "torch.utils.tensorboard"
_OPTIMIZERS = "torch.optim.optimizer"
TRAINERS = frozenset({"transformers", "lightning", "pytorch_lightning", "ultralytics"})


def join_command() -> None:
    """Prepare a Python that a job's command started, as a rank is.  The settings stay, for others that it starts."""
    fraction = os.environ.get("BERTH_GPU_MEMORY_FRACTION")
    if fraction is not None:
        limit_gpu_memory(float(fraction))
    watch()


def watch() -> None:
    """Set hooks that read trackers, resume trainers and profile steps, as far as the job's owner wants them."""
    if FOLDER is None:
        return
    if os.environ.get("TRACKER_TEE") != "off":
        names = {*TRACKERS, TORCH_TRACKER}
        sys.meta_path.insert(0, _Finder(names, "tee", [_metrics_file()], "read what trackers get"))
    if os.environ.get("PROFILE_ON_REQUEST") != "off" and _metrics_file() is not None:
        settings = [_metrics_file(), os.environ.get("BERTH_OUTPUT_DIR")]
        sys.meta_path.insert(0, _Finder({_OPTIMIZERS}, "profiling", settings, "profile this script"))
    if os.environ.get("TRAINER_RESUME") != "off":
        sys.meta_path.insert(0, _Finder(TRAINERS, "resuming", [], "resume trainers by itself"))


def limit_gpu_memory(fraction: float) -> None:
    """Limit torch's allocator once the script imports torch, without starting CUDA earlier than the script."""
    from collections.abc import Sequence
    from importlib.abc import Loader, MetaPathFinder
    from importlib.machinery import ModuleSpec, PathFinder

    class _TorchFinder(MetaPathFinder):
        def find_spec(
            self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            if fullname != "torch":
                return None
            sys.meta_path.remove(self)
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                _call_after_load(spec.loader)
            return spec

    def _call_after_load(loader: Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Deferred until CUDA starts: calling set_per_process_memory_fraction directly would start it now.
            module.cuda._lazy_call(lambda: module.cuda.set_per_process_memory_fraction(fraction))

        loader.exec_module = exec_module  # type: ignore[method-assign]  # this one loader loads torch only

    sys.meta_path.insert(0, _TorchFinder())


class _Finder:
    """Loads a room that wraps functions when the script imports one of its packages; most scripts import none."""

    def __init__(self, names: Any, room: str, settings: list[Any], purpose: str) -> None:
        self._names, self._room, self._settings, self._purpose = names, room, settings, purpose

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self._names or self not in sys.meta_path:
            return None
        try:
            hook = _hook(self._room).start(*self._settings)
        except Exception as error:  # noqa: BLE001 -- the script's import must work without us
            sys.meta_path.remove(self)
            sys.stderr.write(f"Berth does not {self._purpose}: {type(error).__name__}: {error}\n")
            return None
        sys.meta_path[sys.meta_path.index(self)] = hook
        return hook.find_spec(fullname, path, target)


def _hook(room: str) -> Any:
    """The hook of a room, under a name of ours: the script may have a module of its own that is called training."""
    name = f"_berth_rooms.{room}.hook"
    __import__(name)
    return sys.modules[name]


def _metrics_file() -> str | None:
    """Where the trackers' values go: of rank 0 only, as those that a script reports itself."""
    return os.environ.get("BERTH_METRICS_FILE") if RANK == "0" else None
