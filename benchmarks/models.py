"""Models of three kinds that the planner is measured on, and a step's measured memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from training.config.plan import Plan
from training.memory.activation_checkpointing import checkpoint_activations, restore_activations
from training.model.objective import LossFn


class Gpt(nn.Module):
    """(B, T) tokens in, (B, T, V) scores out."""

    def __init__(self, width: int, depth: int, tokens: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        scores: Tensor = self.head(hidden)
        return scores


class Residual(nn.Module):
    """(B, 3, H, W) pictures in, (B, 10) scores out."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(_make_residual_block(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.stem(pictures)
        for block in self.blocks:
            hidden = torch.relu(hidden + block(hidden))
        scores: Tensor = self.head(hidden.mean((2, 3)))
        return scores


def _make_residual_block(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
    )


def make_mlp(width: int = 512, depth: int = 6) -> nn.Sequential:
    layers = [each for _ in range(depth) for each in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def word_loss(scores: Tensor, words: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), words.flatten())


@dataclass(frozen=True, slots=True)
class Case:
    """A model, one sample of its dataset, and its loss."""

    name: str
    make: Callable[[], nn.Module]
    sample: tuple[Any, Any]
    loss_fn: LossFn


class Same(Dataset[Any]):
    """One sample, often."""

    def __init__(self, sample: tuple[Any, Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, _: int) -> tuple[Any, Any]:
        return self.sample


_WORDS = torch.zeros(128, dtype=torch.long)
MODELS = (
    Case("gpt", lambda: Gpt(width=256, depth=6, tokens=128, words=5000), (_WORDS, _WORDS), word_loss),
    Case(
        "residual",
        lambda: Residual(width=32, depth=8),
        (torch.zeros(3, 32, 32), torch.tensor(1)),
        functional.cross_entropy,
    ),
    Case("mlp", make_mlp, (torch.zeros(512), torch.tensor(1)), functional.cross_entropy),
)

_FEW_WORDS = torch.zeros(48, dtype=torch.long)
SMALL_MODELS = (
    Case("gpt", lambda: Gpt(width=64, depth=4, tokens=48, words=500), (_FEW_WORDS, _FEW_WORDS), word_loss),
    Case(
        "residual",
        lambda: Residual(width=16, depth=4),
        (torch.zeros(3, 16, 16), torch.tensor(1)),
        functional.cross_entropy,
    ),
    Case("mlp", make_mlp, (torch.zeros(512), torch.tensor(1)), functional.cross_entropy),
)
"""Steps of some milliseconds, for what is measured many times."""


def measure_peak_bytes(model: nn.Module, sample: tuple[Any, Any], loss_fn: LossFn, plan: Plan) -> float:
    """The most alive in the second real step with AdamW on the CPU, counted by torch's own tracker."""
    # Late import: it loads torch's compiler, which would cost two seconds for asking for a model alone.
    from torch.distributed._tools.mem_tracker import MemTracker

    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = (torch.stack([each] * plan.batch_size) for each in sample)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.precision == "bf16"):
            loss = loss_fn(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()

    blocks = checkpoint_activations(model, plan.activation_checkpointing)
    step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, inputs, targets)
    with tracker:
        step()
    restore_activations(blocks)
    optimizer.zero_grad(set_to_none=True)
    peak = tracker.get_tracker_snapshot("peak")
    return float(next(iter(peak.values()))["Total"])
