"""Trainings with placed layers on ranks that are started once: ``python placed_runs.py RANKS FOLDER CASE...``."""

import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn

from tests.training.strategy_runs import (
    BATCH,
    CLASSES,
    TOKENS,
    WIDTH,
    Gpt,
    gather,
    loss_fn,
    main,
    make_data,
    mean_over_ranks,
)  # fmt: skip
from training import TrainConfig, Trainer
from training.config.plan import PlacementName, Plan
from training.layers.assignment import assign, layer_sizes
from training.layers.division import trace_layers
from training.report import Reporter


class Branches(nn.Module):
    """Two branches and what real models have: views, a change in place, statistics, a weight used twice, a check."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, WIDTH)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.1)
        self.rows = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.left = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(inplace=True), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.norm = nn.BatchNorm1d(WIDTH)
        self.never = nn.Linear(2, 2)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        if length > TOKENS:
            raise ValueError("too long")
        hidden = self.words(tokens) + self.places[:length]
        rows, _ = self.rows(hidden)
        left = self.left(hidden)
        left += hidden.detach()
        left = self.norm(left.reshape(batch * length, -1)).view(batch, length, -1)
        mixed = torch.tanh(self.mix(torch.cat([rows, left], dim=-1)))
        return mixed @ self.words.weight.T  # tied


MODELS = {"gpt": Gpt, "branches": Branches}
EPOCHS = 3


def train(name: str, rank: int, folder: Path) -> dict[str, Any]:
    """Run ``MODEL_METHOD[_PARTS[_DP]]``, with three quarters of the memory it takes on each rank; "alone" places nothing."""
    kind, method, parts, dp = (*name.split("_"), "1", "1")[:4]
    torch.manual_seed(1 + rank)  # the strategy must make the ranks equal
    model = MODELS[kind]().double()
    plan = Plan(batch_size=BATCH) if method == "alone" else make_plan(model, method, int(parts), int(dp))
    config = TrainConfig(
        epochs=EPOCHS,
        max_grad_norm=0.5,
        checkpoint_every=None,
        checkpoint_dir=str(folder / f"checkpoints-{name}"),
        seed=7,
    )
    file = folder / f"{name}-{rank}.jsonl"
    reporter, data = Reporter(file, active=True), make_data()
    state = Trainer(config, plan=plan, reporter=reporter).fit(
        model,
        data,
        data,
        loss_fn=loss_fn,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    )
    full = state.strategy.full_state(state.model, state.optimizer)
    held = sum(parameter.numel() for parameter in model.parameters())
    reporter.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        "losses": mean_over_ranks([line["loss"] for line in lines if "loss" in line]),
        "val_losses": [line["val_loss"] for line in lines if "val_loss" in line],
        "full": full,
        "held": gather(held),
        "plan": plan.to_json(),
    }


def make_plan(model: nn.Module, method: str, parts: int, dp: int) -> Plan:
    ranks = distributed.get_world_size() // dp
    traced = trace_layers(model, make_data().tensors[0][: BATCH // dp])
    room = [0.75 * sum(layer_sizes(traced, BATCH // dp, 2.0))] * ranks
    found = assign(traced, BATCH // dp, room, parts=parts, method=cast(PlacementName, method))
    assert found is not None, f"{method} finds no way to place {type(model).__name__}"
    return Plan(
        strategy="placed",
        dp=dp,
        pp=ranks,
        batch_size=BATCH // dp,
        pipeline_micro_batches=parts,
        layer_ranks=found.ranks,
        placement=found.method,
    )


if __name__ == "__main__":
    main(train)
