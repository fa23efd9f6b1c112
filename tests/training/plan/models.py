"""Small models of three kinds, for the tests of the planner."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Gpt(nn.Module):
    """(B, T) tokens in, (B, T, V) scores out."""

    def __init__(self, width: int = 64, depth: int = 3, tokens: int = 32, words: int = 200) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
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

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.stem(pictures)
        for block in self.blocks:
            hidden = torch.relu(hidden + block(hidden))
        scores: Tensor = self.head(hidden.mean((2, 3)))
        return scores


def make_mlp(width: int = 128, depth: int = 4) -> nn.Sequential:
    layers = [each for _ in range(depth) for each in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def word_loss(scores: Tensor, words: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), words.flatten())


def make_case(name: str):
    """(model, sample, loss function)."""
    words = torch.zeros(32, dtype=torch.long)
    match name:
        case "gpt":
            return Gpt(), (words, words), word_loss
        case "residual":
            return Residual(), (torch.zeros(3, 16, 16), 1), functional.cross_entropy
        case _:
            return make_mlp(), (torch.zeros(128), 1), functional.cross_entropy
