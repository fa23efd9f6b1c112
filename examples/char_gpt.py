"""Learn to write like Melville, one character at a time: a small GPT with the `training` library.

    python examples/char_gpt.py                                 # a few minutes on a CPU
    torchrun --nproc-per-node 2 examples/char_gpt.py
    python -m training examples/char_gpt.py --max-steps 200     # the same file as a model job

Run again after an interruption, it continues where it stopped.
Legend: B batch, T characters of context, C channels, V characters of the alphabet.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from training import TrainConfig, Trainer

DATA = Path(__file__).parent / "data" / "moby_dick.txt"
ALPHABET = "\n !\"$'()*,-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz—"
CONTEXT = 64
CHANNELS = 128
HEADS = 4
LAYERS = 3


class Characters(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text: T characters, and the same shifted by one, as numbers below V."""

    def __init__(self, text: str) -> None:
        numbers = {character: number for number, character in enumerate(ALPHABET)}
        self.text = torch.tensor([numbers.get(character, 1) for character in text])

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.text[index * CONTEXT : (index + 1) * CONTEXT + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(CHANNELS)
        self.mix = nn.Linear(CHANNELS, 3 * CHANNELS, bias=False)
        self.attended = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.think = nn.Sequential(
            nn.LayerNorm(CHANNELS),
            nn.Linear(CHANNELS, 4 * CHANNELS),
            nn.GELU(),
            nn.Linear(4 * CHANNELS, CHANNELS),
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.mix(self.before_attention(x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (B, heads, T, C / heads)
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(attention.transpose(1, 2).flatten(-2))
        thought: Tensor = self.think(x)
        return x + thought


class Gpt(nn.Module):
    """(B, T) numbers to (B, T, V) scores of the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), CHANNELS)
        self.positions = nn.Embedding(CONTEXT, CHANNELS)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.scores = nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, len(ALPHABET)))

    def forward(self, numbers: Tensor) -> Tensor:
        places = torch.arange(numbers.shape[1], device=numbers.device)
        scores: Tensor = self.scores(self.blocks(self.characters(numbers) + self.positions(places)))
        return scores

    @torch.no_grad()
    def write(self, start: str, length: int) -> str:
        device = self.positions.weight.device
        numbers = [ALPHABET.index(character) for character in start]
        for _ in range(length):
            seen = torch.tensor([numbers[-CONTEXT:]], device=device)
            chances = functional.softmax(self(seen)[0, -1] / 0.8, dim=-1)
            numbers.append(int(torch.multinomial(chances, 1)))
        return "".join(ALPHABET[number] for number in numbers)


def build_model() -> Gpt:
    return Gpt()


def build_dataset(path: str | None) -> tuple[Characters, Characters]:
    """The text at ``path``: nine tenths to train on, the rest to validate."""
    file = Path(path or DATA)
    file = file / DATA.name if file.is_dir() else file
    text = file.read_text(encoding="utf-8")
    border = len(text) * 9 // 10
    return Characters(text[:border]), Characters(text[border:])


def loss_fn(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def configure_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="a text, or the folder of moby_dick.txt")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    arguments = parser.parse_args()
    config = TrainConfig(
        epochs=arguments.epochs,
        max_steps=arguments.max_steps,
        batch_size=arguments.batch_size,
        precision=arguments.precision,
        max_grad_norm=1.0,
        checkpoint_every="10s",
        resume=True,
    )
    torch.manual_seed(config.seed)
    model = build_model()
    train, val = build_dataset(arguments.data)
    Trainer(config).fit(model, train, val, loss_fn=loss_fn, optimizer=configure_optimizer)
    if os.environ.get("RANK", "0") == "0":
        print(model.eval().write("Call me ", 300))


if __name__ == "__main__":
    main()
