"""The library that runs under torchrun; importable without torch.

Names are loaded when they are first used (PEP 562), so that a web process that reads
``training.events`` pays nothing for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.callbacks import EarlyStopping as EarlyStopping
    from training.checkpoint import Checkpointer as Checkpointer
    from training.config import TrainConfig as TrainConfig
    from training.data import ResumableSampler as ResumableSampler
    from training.explanation import explain as explain
    from training.memory.autotune import find_batch_size as find_batch_size
    from training.plan.types import Plan as Plan
    from training.report import Reporter as Reporter
    from training.report import report as report
    from training.strategies.choose import prepare as prepare
    from training.strategies.choose import prepare_optimizer as prepare_optimizer
    from training.trainer import Trainer as Trainer

__all__ = [
    "Checkpointer",
    "EarlyStopping",
    "Plan",
    "Reporter",
    "ResumableSampler",
    "TrainConfig",
    "Trainer",
    "explain",
    "find_batch_size",
    "prepare",
    "prepare_optimizer",
    "report",
]

_HOMES = {
    "Checkpointer": "training.checkpoint",
    "EarlyStopping": "training.callbacks",
    "Plan": "training.plan.types",
    "Reporter": "training.report",
    "ResumableSampler": "training.data",
    "TrainConfig": "training.config",
    "Trainer": "training.trainer",
    "explain": "training.explanation",
    "find_batch_size": "training.memory.autotune",
    "prepare": "training.strategies.choose",
    "prepare_optimizer": "training.strategies.choose",
}


def __getattr__(name: str) -> object:
    if name == "report":  # the package itself is callable, so both ways to import it agree
        return import_module("training.report")
    if name not in _HOMES:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
