"""Ten small models of ten kinds, for measurements over many architectures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models import Gpt, Residual, make_mlp, word_loss
from training.model.objective import LossFn

CLASSES = 10
WORDS, LENGTH = 200, 32


class Vit(nn.Module):
    """(B, 3, 16, 16) pictures in, (B, 10) scores out: patches, a class token, an encoder."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.mark = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(17, width))
        self.blocks = nn.ModuleList(_encoder(width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.mark.expand(pictures.shape[0], -1, -1), patches], dim=1) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        scores: Tensor = self.head(hidden[:, 0])
        return scores


class Bert(nn.Module):
    """(B, T) words in, a class out: an encoder that sees both sides, pooled by its first word."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(_encoder(width) for _ in range(depth))
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.norm(self.words(words) + self.places(torch.arange(words.shape[1], device=words.device)))
        for block in self.blocks:
            hidden = block(hidden)
        scores: Tensor = self.head(torch.tanh(self.pool(hidden[:, 0])))
        return scores


class Lstm(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.rows = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        rows, _ = self.rows(self.words(words))
        scores: Tensor = self.head(rows[:, -1])
        return scores


class UNet(nn.Module):
    """(B, 3, 32, 32) pictures in, (B, 10, 32, 32) scores out, with connections across."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down1, self.down2 = _double(3, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up2, self.up1 = _double(6 * width, 2 * width), _double(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        first = self.down1(pictures)
        second = self.down2(functional.max_pool2d(first, 2))
        third = self.bottom(functional.max_pool2d(second, 2))
        second = self.up2(torch.cat([second, functional.interpolate(third, scale_factor=2)], dim=1))
        first = self.up1(torch.cat([first, functional.interpolate(second, scale_factor=2)], dim=1))
        scores: Tensor = self.head(first)
        return scores


class Experts(nn.Module):
    """A softmax over experts weighs what each makes of the input."""

    def __init__(self, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(make_mlp(width, 2) for _ in range(experts))

    def forward(self, inputs: Tensor) -> Tensor:
        weights = torch.softmax(self.gate(inputs), dim=-1)
        answers = torch.stack([expert(inputs) for expert in self.experts], dim=1)
        return (weights.unsqueeze(-1) * answers).sum(dim=1)


class Tied(nn.Module):
    """The words' embedding is the last layer's weight too."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(_encoder(width) for _ in range(2))

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words)
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(hidden, self.words.weight)


class Branching(nn.Module):
    """Three branches of different depth, joined again."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.left, self.right = make_mlp(width, 3), make_mlp(width, 1)
        self.middle = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, CLASSES))
        self.head = nn.Linear(3 * CLASSES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.stem(inputs))
        branches = [self.left(hidden), self.middle(hidden), self.right(hidden)]
        scores: Tensor = self.head(torch.cat(branches, dim=-1))
        return scores


def _encoder(width: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)


def _double(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.ReLU(inplace=True),
    )


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model, one sample of its dataset, and its loss."""

    name: str
    make: Callable[[], nn.Module]
    sample: tuple[Any, Any]
    loss_fn: LossFn = functional.cross_entropy


_VECTOR, _ROW = torch.zeros(64), torch.zeros(LENGTH, dtype=torch.long)
_CLASS = torch.tensor(1)
ARCHITECTURES = (
    Architecture("mlp", lambda: make_mlp(64, 4), (_VECTOR, _CLASS)),
    Architecture("resnet", lambda: Residual(16, 4), (torch.zeros(3, 16, 16), _CLASS)),
    Architecture("vit", Vit, (torch.zeros(3, 16, 16), _CLASS)),
    Architecture("bert", Bert, (_ROW, _CLASS)),
    Architecture("gpt", lambda: Gpt(64, 3, LENGTH, WORDS), (_ROW, _ROW), word_loss),
    Architecture("lstm", Lstm, (_ROW, _CLASS)),
    Architecture("unet", UNet, (torch.zeros(3, 32, 32), torch.zeros(32, 32, dtype=torch.long))),
    Architecture("experts", Experts, (_VECTOR, _CLASS)),
    Architecture("tied", Tied, (_ROW, _ROW), word_loss),
    Architecture("branching", Branching, (_VECTOR, _CLASS)),
)
