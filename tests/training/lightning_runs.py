"""A module with its own steps under several strategies: ``python lightning_runs.py RANKS FOLDER CASE...``."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.training.strategy_runs import main
from tests.training.test_lightning import Line, make_data
from training import TrainConfig, Trainer
from training.report import Reporter

BATCH = 8


def fit(strategy: str, ranks: int, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    module = Line()
    config = TrainConfig(
        strategy=strategy,  # type: ignore[arg-type]  # one of the cases
        batch_size=BATCH // ranks,
        epochs=3,
        max_grad_norm=1.0,
        checkpoint_dir=str(folder / f"checkpoints-{strategy}"),
        resume=False,
    )
    reporter = Reporter(folder / f"{strategy}.jsonl")
    state = Trainer(config, reporter=reporter).fit(module, make_data(21), make_data(9))
    reporter.close()
    return {"weights": dict(state.full_model_state()), "val_loss": state.metrics["val_loss"]}


def train(name: str, rank: int, folder: Path) -> dict[str, Any]:
    """Train the case on all ranks; rank 0 trains once alone, to compare."""
    if name == "ddp" and rank == 0:
        with mock.patch.dict(os.environ):
            for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                os.environ.pop(variable, None)
            torch.save(fit("single", 1, folder), folder / "alone.pt")
    return fit(name, 2, folder)


if __name__ == "__main__":
    main(train)
