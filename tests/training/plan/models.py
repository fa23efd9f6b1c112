"""Small models of three kinds, for the tests of the planner."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models import Gpt, Residual, make_mlp, word_loss
from training.model.objective import LossFn


def make_case(name: str) -> tuple[nn.Module, tuple[Any, Any], LossFn]:
    """(model, sample, loss function)."""
    words = torch.zeros(32, dtype=torch.long)
    match name:
        case "gpt":
            return Gpt(width=64, depth=3, tokens=32, words=200), (words, words), word_loss
        case "residual":
            return Residual(16, 3), (torch.zeros(3, 16, 16), torch.tensor(1)), functional.cross_entropy
        case _:
            return make_mlp(128, 4), (torch.zeros(128), torch.tensor(1)), functional.cross_entropy
