"""A training run of a few seconds, started as its own process: ``python runs.py WORKERS STEPS [PAUSE_S [SAVE_EVERY]]``."""

import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from training import TrainConfig, Trainer


class Pause(nn.Module):
    """Leaves time to kill."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(self.pause_s)
        return inputs


def main() -> None:
    workers, steps = int(sys.argv[1]), int(sys.argv[2])
    pause = Pause(float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
    torch.manual_seed(0)
    inputs = torch.randn(203, 8, generator=torch.Generator().manual_seed(1))
    # Dropout makes the losses depend on the random generators.
    model = nn.Sequential(pause, nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
    config = TrainConfig(
        batch_size=8,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        epochs=100,
        max_steps=steps,
        num_workers=workers,
        checkpoint_every=int(sys.argv[4]) if len(sys.argv) > 4 else 7,
        seed=5,
    )
    Trainer(config).fit(
        model,
        TensorDataset(inputs, (inputs.sum(dim=1) > 0).long()),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    )
    Path("finished").touch()


if __name__ == "__main__":
    main()
