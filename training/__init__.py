"""The library that runs under torchrun; importable without torch.

Names load at their first use (PEP 562), so that a web process that reads ``training.events``
does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.callbacks import BestWeights as BestWeights
    from training.callbacks import Callback as Callback
    from training.callbacks import EarlyStopping as EarlyStopping
    from training.checkpoint import Checkpointer as Checkpointer
    from training.config import TrainConfig as TrainConfig
    from training.config.deepspeed import from_deepspeed as from_deepspeed
    from training.config.plan import Plan as Plan
    from training.data import ResumableSampler as ResumableSampler
    from training.memory.autotune import find_batch_size as find_batch_size
    from training.report import Reporter as Reporter
    from training.report import report as report
    from training.strategies.choose import prepare as prepare
    from training.strategies.choose import prepare_optimizer as prepare_optimizer
    from training.trainer import Trainer as Trainer
    from training.watch.explanation import explain as explain

__all__ = [
    "BestWeights",
    "Callback",
    "Checkpointer",
    "EarlyStopping",
    "Plan",
    "Reporter",
    "ResumableSampler",
    "TrainConfig",
    "Trainer",
    "explain",
    "find_batch_size",
    "from_deepspeed",
    "prepare",
    "prepare_optimizer",
    "report",
]

_HOMES = {
    "BestWeights": "training.callbacks",
    "Callback": "training.callbacks",
    "Checkpointer": "training.checkpoint",
    "EarlyStopping": "training.callbacks",
    "Plan": "training.config.plan",
    "Reporter": "training.report",
    "ResumableSampler": "training.data",
    "TrainConfig": "training.config",
    "Trainer": "training.trainer",
    "explain": "training.watch.explanation",
    "find_batch_size": "training.memory.autotune",
    "from_deepspeed": "training.config.deepspeed",
    "prepare": "training.strategies.choose",
    "prepare_optimizer": "training.strategies.choose",
}


def __getattr__(name: str) -> object:
    if name == "report":  # the package itself is callable, so both ways to import it give the same object
        return import_module("training.report")
    if name not in _HOMES:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
