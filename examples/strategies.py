"""Trains the same model under any strategy: ``torchrun --standalone --nproc-per-node 2 strategies.py fsdp 32``."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from training import TrainConfig, Trainer


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.fc2(torch.relu(self.fc1(x)))
        return x + added


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), *(Block(64) for _ in range(6)), nn.Linear(64, 2))


if __name__ == "__main__":
    strategy, batch_size = sys.argv[1], int(sys.argv[2])
    inputs = torch.randn(4096, 20, generator=torch.Generator().manual_seed(0))
    labels = (inputs.sum(dim=1) > 0).long()
    config = {"strategy": strategy, "batch_size": batch_size, "epochs": 2}
    trainer = Trainer(TrainConfig.from_mapping(config))
    state = trainer.fit(
        make_model(),
        TensorDataset(inputs, labels),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    )
    trainer.export(state, "weights.pt")

    if os.environ.get("RANK", "0") == "0":
        model = make_model()
        model.load_state_dict(torch.load("weights.pt", weights_only=True))
        print(f"{strategy}: loss {nn.functional.cross_entropy(model(inputs), labels).item():.6f}")
