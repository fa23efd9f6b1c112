"""Trainings under many strategies on ranks that are started once: ``python strategy_runs.py RANKS FOLDER CASE...``.

Each case trains the same model on the same batches; rank 0 writes ``CASE.pt``: the loss of each step
over all ranks, the validation losses, the weights, and events.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # before the fork: otherwise each rank loads all of it for itself
import torch.profiler
from torch import Tensor, distributed, nn
from torch.utils.data import TensorDataset

from tests.training.started import PATIENCE_S
from training import TrainConfig, Trainer
from training.model.objective import LossFn
from training.report import Reporter

SAMPLES, WIDTH, TOKENS, CLASSES = 64, 16, 6, 8
BATCH = 16
MANY_RANKS = 4
CASES: dict[str, dict[str, Any]] = {
    "single": {},
    "single-short": {"epochs": 2},
    "single-accumulate": {"gradient_accumulation_steps": 4},
    "single-selective": {"activation_checkpointing": "selective"},
    "single-full": {"activation_checkpointing": "full"},
    "single-offload-optimizer": {"cpu_offload": "optimizer"},
    "single-offload-activations": {"cpu_offload": "activations"},
    "ddp": {"strategy": "ddp"},
    "ddp-accumulate": {"strategy": "ddp", "gradient_accumulation_steps": 2},
    "ddp-offload-optimizer": {"strategy": "ddp", "cpu_offload": "optimizer"},
    "ddp-static": {"strategy": "ddp", "static_graph": True, "broadcast_buffers": False, "bucket_cap_mb": 1},
    "ddp-static-accumulate": {"strategy": "ddp", "static_graph": True, "gradient_accumulation_steps": 2},
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2", "gradient_accumulation_steps": 2},
    "fsdp": {"strategy": "fsdp"},
    "fsdp-accumulate": {"strategy": "fsdp", "gradient_accumulation_steps": 2, "activation_checkpointing": "full"},
    "fsdp-offload-parameters": {"strategy": "fsdp", "cpu_offload": "parameters"},
    "fsdp-offload-activations": {"strategy": "fsdp", "cpu_offload": "activations"},
    "tensor": {"strategy": "tensor", "activation_checkpointing": "selective"},
    "tensor-dp": {"strategy": "tensor", "tensor_parallel_size": 2},
    "pipeline-gpipe": {"strategy": "pipeline", "pipeline_schedule": "gpipe"},
    "pipeline-1f1b": {"strategy": "pipeline", "gradient_accumulation_steps": 2},
    "pipeline-interleaved": {"strategy": "pipeline", "pipeline_schedule": "interleaved"},
    "pipeline-full": {"strategy": "pipeline", "activation_checkpointing": "full"},
    "pipeline-dp": {"strategy": "pipeline", "pipeline_parallel_size": 2},
    "pipeline-tp": {"strategy": "pipeline", "pipeline_parallel_size": 2, "tensor_parallel_size": 2},
    "pipeline-tp-dp": {"strategy": "pipeline", "pipeline_parallel_size": 2, "tensor_parallel_size": 2},
}  # fmt: skip


RunCase = Callable[[str, int, Path], Any]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            layer(x).view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return output


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        x = x + self.attention(self.norm1(x)) * scale
        output: Tensor = x + self.mlp(self.norm2(x))
        return output


class Gpt(nn.Module):
    """Has what real ones have: embeddings before the blocks, a norm and a head after them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, scale=0.5)
        output: Tensor = self.head(self.norm(x))
        return output


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Gpt().double()


def loss_fn(scores: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(CLASSES, (SAMPLES, TOKENS), generator=generator)
    return TensorDataset(tokens, (tokens + tokens.roll(1, dims=1)) % CLASSES)


def epochs_for(ranks: int) -> int:
    """Twelve steps, whose eleventh measures the collectives; eight on many ranks, which take as much each."""
    return 2 if ranks >= MANY_RANKS else 3


def train(name: str, rank: int, folder: Path) -> dict[str, Any]:
    return train_as(CASES[name], name, rank, folder, make_model(seed=1 + rank), loss_fn)


def train_as(
    wanted: dict[str, Any],
    name: str,
    rank: int,
    folder: Path,
    model: nn.Module,
    loss_fn: LossFn,
    epochs: int | None = None,
) -> dict[str, Any]:
    """Ranks begin with other weights: the strategy must make them equal."""
    world_size = distributed.get_world_size() if distributed.is_initialized() else 1
    tp, pp = wanted.get("tensor_parallel_size"), wanted.get("pipeline_parallel_size")
    if wanted.get("strategy") == "pipeline":
        shared = (pp or world_size) * (tp or 1)
    else:
        shared = (tp or world_size) if wanted.get("strategy") == "tensor" else 1
    in_step = wanted.get("gradient_accumulation_steps", 1) * (world_size // shared)
    settings = {"epochs": epochs or epochs_for(world_size), **wanted}
    config = TrainConfig(
        batch_size=BATCH // in_step,
        max_grad_norm=0.5,
        checkpoint_every=None,
        checkpoint_dir=str(folder / f"checkpoints-{name}"),
        seed=7,
        **settings,
    )
    file = folder / f"{name}-{rank}.jsonl"
    reporter = Reporter(file, active=True)
    data = make_data()
    state = Trainer(config, reporter=reporter).fit(
        model,
        data,
        data,
        loss_fn=loss_fn,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
    )
    full = state.strategy.full_state(state.model, state.optimizer)
    reporter.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        "losses": mean_over_ranks([line["loss"] for line in lines if "loss" in line]),
        "val_losses": [line["val_loss"] for line in lines if "val_loss" in line],
        "comm_percent": [line["comm_percent"] for line in lines if "comm_percent" in line],
        "events": [line for line in lines if "event" in line],
        "full": full,
    }


def mean_over_ranks(losses: list[float]) -> list[float]:
    of_ranks: list[Any] = gather(losses)
    mean: list[float] = torch.tensor(of_ranks, dtype=torch.float64).mean(dim=0).tolist()
    return mean


def gather(value: Any) -> list[Any]:
    """What each rank has, on all ranks."""
    if not distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def run_rank(run_case: RunCase, rank: int, ranks: int, folder: Path, names: list[str]) -> None:
    """Run all cases; a case that fails leaves its traceback, and ends the others too."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    if ranks > 1:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=PATIENCE_S),
        )
    for name in names:
        result = run_case(name, rank, folder)
        if rank == 0:
            torch.save(result, folder / f"{name}.pt.part")
            (folder / f"{name}.pt.part").rename(folder / f"{name}.pt")


def main(run_case: RunCase = train) -> None:
    ranks, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]

    children = {}
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            code = 0
            try:
                run_rank(run_case, rank, ranks, folder, names)
            except BaseException:  # noqa: BLE001  # whatever it is, the parent must hear of it
                (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
                code = 1
            os._exit(code)  # torch with gloo may abort where the interpreter ends by itself
        children[pid] = rank
    failed = False
    while children:
        pid, status = os.wait()
        del children[pid]
        if status and not failed:
            failed = True
            for other in children:
                os.kill(other, 9)
    sys.exit(failed)


if __name__ == "__main__":
    main()
