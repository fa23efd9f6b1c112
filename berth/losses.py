"""Which metric is the loss: one rule for lists, charts, comparisons, reports and divergence."""

import re
from collections.abc import Iterable

_PARTS = re.compile(r"[^A-Za-z0-9]+")
_NO_LOSS = frozenset(
    {"scale", "scaler", "weight", "weights", "coef", "coeff", "lambda", "threshold", "smoothing"}
)
_EVALUATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
# The training's own first; Hugging Face's "train_loss" is the mean over the whole run, told at its end.
_MAIN = ("train/loss", "loss", "train_loss", "loss_train", "training_loss", "total_loss", "lm_loss")
_OTHER, _EVALUATED = len(_MAIN), len(_MAIN) + 1


def is_loss(name: str) -> bool:
    """Whether a metric is a loss: ``Loss``, ``train/loss``, ``Loss_D``, ``box_loss``, ``CrossEntropyLoss``."""
    parts = _parts(name)
    return any(part.endswith(("loss", "losses")) for part in parts) and _NO_LOSS.isdisjoint(parts)


def in_loss_order(names: Iterable[str]) -> list[str]:
    """The losses among the names; the first stands for the job wherever one number does."""
    return sorted(filter(is_loss, names), key=lambda name: (loss_rank(name), name))


def loss_rank(name: str) -> int:
    """The place of a loss: the training's own, then other losses of it, then those of evaluations."""
    lower = name.lower()
    if lower in _MAIN:
        return _MAIN.index(lower)
    parts = _parts(name)
    joined = "_".join(parts)
    if joined in _MAIN:
        return _MAIN.index(joined)
    return _OTHER if _EVALUATION.isdisjoint(parts) else _EVALUATED


def _parts(name: str) -> list[str]:
    return [part for part in _PARTS.split(name.lower()) if part]
