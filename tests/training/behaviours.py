"""What two ranks do beside the plain step, each case in the same ranks: ``python behaviours.py RANKS FOLDER CASE...``."""

import json
import os
import shutil
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.utils.data import Dataset, TensorDataset

from tests.training.strategy_runs import (
    CLASSES,
    WIDTH,
    Block,
    Gpt,
    gather,
    loss_fn,
    main,
    make_data,
    make_model,
)
from training import TrainConfig, Trainer
from training.config import ConfigError
from training.plan.hardware import read_hardware
from training.plan.link import measure_unless_known
from training.report import Reporter
from training.strategies import ranks
from training.watch.losses import BadLoss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def fit(
    name: str, rank: int, folder: Path, model: nn.Module, data: Any, optimizer: Any = sgd, **settings: Any
) -> dict[str, Any]:
    """Lines that each rank reported, and the whole weights."""
    file = folder / f"{name}-{rank}-{time.time_ns()}.jsonl"
    reporter = Reporter(file, active=True)
    config = TrainConfig(
        **{
            "batch_size": 8,
            "epochs": 5,
            "checkpoint_every": None,
            "checkpoint_dir": str(folder / name),
            **settings,
        }
    )
    try:
        state = Trainer(config, reporter=reporter).fit(model, data, loss_fn=loss_fn, optimizer=optimizer)
    finally:
        reporter.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {"lines": lines, "weights": state.full_model_state(), "shares": state.sampler.shares}


def compress(name: str, rank: int, folder: Path) -> Any:
    return {
        hook: fit(f"{name}-{hook}", rank, folder, make_model(1), make_data(), strategy="ddp", comm_hook=hook)[
            "weights"
        ]
        for hook in ("none", "fp16", "powersgd")
    }


def go_alone(name: str, rank: int, folder: Path) -> Any:
    """Weights of both ranks, averaged each step and each fourth step, beside those of DDP."""
    found = {}
    for steps in (None, 1, 4):
        result = fit(name, rank, folder, make_model(1), make_data(), strategy="ddp", local_sgd_steps=steps)
        found[steps] = gather(result["weights"])
    return found


def meet_nan(name: str, rank: int, folder: Path) -> Any:
    """Rank 1 alone meets a loss that is not finite."""
    model = make_model(1)
    calls = 0

    def break_loss(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return output * float("nan") if rank == 1 and calls == 6 else output

    model.register_forward_hook(break_loss)
    try:
        fit(name, rank, folder, model, make_data(), strategy="ddp", stop_on_nan=True, epochs=200)
    except BadLoss as error:
        return gather(str(error))
    return gather("trained to the end")


def differ(name: str, rank: int, folder: Path) -> Any:
    """Rank 1 has another model, then other settings."""
    found = []
    for model, seed in ((nn.Linear(4, 2 + rank), 0), (nn.Linear(4, 2), rank)):
        try:
            fit(name, rank, folder, model, TensorDataset(torch.randn(16, 4), torch.randn(16, 2)), seed=seed)
        except ConfigError as error:
            found.append(gather(str(error)))
    return found


class Noted(Dataset[Any]):
    """Remembers which samples this rank has read."""

    def __init__(self) -> None:
        self.data = make_data()
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.data[index]


def be_slow(name: str, rank: int, folder: Path) -> Any:
    """Rank 1 takes a time for each sample, rank 0 a third of it."""
    model, data = make_model(1), Noted()
    model.register_forward_pre_hook(
        lambda module, inputs: time.sleep(len(inputs[0]) * (0.006 if rank else 0.002))
    )
    even = fit(f"{name}-even", rank, folder, model, make_data(), strategy="ddp", epochs=12)
    result = fit(name, rank, folder, model, data, strategy="ddp", load_balance=True, epochs=8)
    return {**result, "even": even["lines"], "read": gather(data.read)}


class Lazy(Block):
    """A block whose time its parameters do not tell."""

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        time.sleep(0.012)
        return super().forward(x, scale=scale)


def move_blocks(name: str, rank: int, folder: Path) -> Any:
    """The last two of six blocks are slow: the cut must move towards them, and change no number."""
    found = {}
    for balanced in (False, True):
        torch.manual_seed(1)
        model = Gpt()
        model.blocks = nn.ModuleList((*(Block() for _ in range(4)), Lazy(), Lazy()))
        settings = {"strategy": "pipeline", "batch_size": 16, "epochs": 4, "pipeline_micro_batches": 2}
        found[balanced] = fit(
            f"{name}-{balanced}", rank, folder, model.double(), make_data(), load_balance=balanced, **settings
        )
    return found


def change_strategy(name: str, rank: int, folder: Path) -> Any:
    """Twenty steps in five attempts, each under another strategy, beside twenty in one."""
    adamw = {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)}
    through = fit(f"{name}-through", rank, folder, make_model(1), make_data(), **adamw, strategy="ddp")
    for strategy, steps in (("ddp", 7), ("fsdp", 10), ("pipeline", 13), ("zero1", 17), ("tensor", 20)):
        settings = {"strategy": strategy, "max_steps": steps, "resume": True}
        settings["batch_size"] = 8 if strategy in ("ddp", "fsdp", "zero1") else 16
        model = make_model(1 if steps == 7 else steps)  # what a later process begins with must not matter
        parts = fit(name, rank, folder, model, make_data(), **adamw, **settings)
    return {"through": through["weights"], "parts": parts["weights"], "lines": parts["lines"]}


def run_short(name: str, rank: int, folder: Path) -> Any:
    """Rank 1 alone finds no memory: in a forward pass of step 6, then in a backward pass of step 9."""
    return fail_twice(name, rank, folder)


def run_short_compressed(name: str, rank: int, folder: Path) -> Any:
    """The same where gradients travel by a hook, or some parameters have none."""
    kinds: dict[str, tuple[type[Gpt], dict[str, Any]]] = {
        "fp16": (Gpt, {"comm_hook": "fp16"}),
        "powersgd": (Gpt, {"comm_hook": "powersgd"}),
        "unused": (Idle, {"find_unused_parameters": True}),
        "buffers": (Counting, {"gradient_as_bucket_view": True}),
    }
    return {
        kind: fail_twice(f"{name}-{kind}", rank, folder, build, **settings)
        for kind, (build, settings) in kinds.items()
    }


class Idle(Gpt):
    """Leaves one layer out on all ranks, and another on all but rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.never, self.seldom = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = super().forward(tokens)
        return output + self.seldom.weight.sum() if os.environ["RANK"] == "1" else output


class Switching(Gpt):
    """A branch that all take at first, rank 1 in every third pass later on, and nobody in two passes."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.steps = nn.Linear(WIDTH, CLASSES), 0

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = super().forward(tokens)
        self.steps += 1
        left_out = self.steps in (19, 20) or (os.environ["RANK"] == "1" and self.steps > 6 and self.steps % 3)
        return output if left_out else output + self.branch(self.tokens(tokens))


class Dropping(Gpt):
    """LayerDrop: each rank draws for itself which blocks take part in a step."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x) if torch.rand(()).item() < 0.6 else x
        output: Tensor = self.head(self.norm(x))
        return output


def leave_out(name: str, rank: int, folder: Path) -> Any:
    """Trainings in whose steps parameters get no gradient, with and without being told so."""
    os.environ["RANK"] = str(rank)
    found: dict[str, Any] = {}
    ranks.EXCHANGE_EVERY_S = 0  # these steps are so short that a training could end before the ranks compare
    for case, build, settings in (
        ("never", Idle, {"strategy": "ddp"}),
        ("switching", Switching, {"strategy": "ddp", "gradient_accumulation_steps": 2}),
        ("dropping", Dropping, {"strategy": "ddp", "max_grad_norm": 0.5}),
        ("zero1", Idle, {"strategy": "zero1"}),
        ("auto", Idle, {"strategy": "auto"}),
    ):
        for told in (True, False):
            torch.manual_seed(1)
            result = fit(
                f"{name}-{case}-{told}", rank, folder, build().double(), Noted(), decaying,
                find_unused_parameters=told, **settings,
            )  # fmt: skip
            weights = gather(result["weights"])
            found.setdefault(case, {})[told] = {"lines": result["lines"], "of_ranks": weights}
    return found


def decaying(model: nn.Module) -> torch.optim.Optimizer:
    """Moves parameters whose gradient is zero, and leaves alone those that have none."""
    return torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)


class Counting(Gpt):
    """Has buffers, which DDP takes from rank 0 in its forward pass; they remember all samples seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training:
            self.seen: Tensor = self.seen + len(tokens) * (1 + int(os.environ["RANK"]))
        output: Tensor = super().forward(tokens)
        return output


def fail_twice(
    name: str, rank: int, folder: Path, build: type[Gpt] = Gpt, **settings: Any
) -> dict[bool, dict[str, Any]]:
    """The same training with memory enough, and with too little on rank 1 in steps 6 and 9."""
    found = {}
    os.environ["RANK"] = str(rank)
    for failing in (False, True):
        torch.manual_seed(1)
        model, data = build().double(), Noted()
        micro_batches = [0]

        def fail_forward(
            module: nn.Module, inputs: Any, failing: bool = failing, count: Any = micro_batches
        ) -> None:
            count[0] += module.training
            if failing and rank == 1 and count[0] == 12:  # the second micro-batch of step 6
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        def fail_backward(gradient: Tensor, failing: bool = failing, count: Any = micro_batches) -> None:
            if failing and rank == 1 and count[0] == 25:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

        model.register_forward_pre_hook(fail_forward)
        model.tokens.weight.register_hook(fail_backward)
        if failing:  # else the step is the ordinary one, in which DDP exchanges as it goes
            os.environ["BERTH_PRETEND_MEMORY_BYTES"] = str(1 << 40)
        try:
            wanted = {"strategy": "ddp", "gradient_accumulation_steps": 2, "max_grad_norm": 0.5, **settings}
            result = fit(f"{name}-{failing}", rank, folder, model, data, **wanted)
        finally:
            os.environ.pop("BERTH_PRETEND_MEMORY_BYTES", None)
        found[failing] = {**result, "read": gather(data.read), "of_ranks": gather(result["lines"])}
    return found


def measure_links(name: str, rank: int, folder: Path) -> Any:
    """Rates of two ranks without a measured link, with one, and after a second look."""
    os.environ["BERTH_RATES_FILE"] = str(folder / "rates.json")
    device = torch.device("cpu")
    if rank == 0:  # one after the other: both would measure, and keep different numbers
        read_hardware(device, 2)
    gather(None)
    rates = [read_hardware(device, 2).rates]
    for turn in range(2):
        gather(None)
        store = FileStore(str(folder / f"{name}-{turn}"), 2)
        measure_unless_known(device, store, rank, 2, timedelta(seconds=30))
        gather(None)
        rates.append(read_hardware(device, 2).rates)
    alone = read_hardware(device, 1).rates
    return gather([asdict(each) for each in (*rates, alone)])


def split_checkpoint(name: str, rank: int, folder: Path) -> Any:
    """Saved in parts by fsdp, then loaded by strategies that have whole parameters."""
    adamw = {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)}
    saved = fit(name, rank, folder, make_model(1), make_data(), **adamw, strategy="fsdp", max_steps=7)
    (folder / f"{name}-kept").mkdir(exist_ok=True)
    gather(None)
    if rank == 0:
        shutil.copytree(folder / name, folder / f"{name}-kept", dirs_exist_ok=True)
    settings = {"strategy": "ddp", "max_steps": 7, "resume": True}
    loaded = fit(name, rank, folder, make_model(2), make_data(), **adamw, **settings)
    return {"saved": saved["weights"], "loaded": loaded["weights"]}


def refuse(name: str, rank: int, folder: Path) -> Any:
    """Models and settings that a strategy cannot carry out."""

    class Tied(Gpt):
        def __init__(self) -> None:
            super().__init__()
            self.head.weight = self.tokens.weight

    class Skipping(Gpt):
        def forward(self, tokens: Tensor) -> Tensor:
            x = first = self.tokens(tokens)
            for block in self.blocks:
                x = block(x + first)
            return self.head(x)  # type: ignore[no-any-return]  # a module's output

    found = {}
    for case, model, settings in (
        ("tied", Tied(), {"strategy": "pipeline"}),
        ("skipping", Skipping(), {"strategy": "pipeline"}),
        ("no blocks", nn.Embedding(8, 8), {"strategy": "pipeline"}),
        ("no pairs", nn.Embedding(8, 8), {"strategy": "tensor"}),
        ("bf16 hook", make_model(1), {"strategy": "ddp", "comm_hook": "bf16"}),
        ("sync", make_model(1), {"strategy": "ddp", "sync_batchnorm": True}),
        ("short", make_model(1), {"strategy": "ddp", "batch_size": 40}),
    ):
        try:
            fit(name, rank, folder, model, make_data(), **settings)
        except Exception as error:  # noqa: BLE001  # the test compares its type and sentence
            found[case] = f"{type(error).__name__}: {error}"
    return found


BEHAVIOURS = {
    "compress": compress,
    "go-alone": go_alone,
    "meet-nan": meet_nan,
    "differ": differ,
    "be-slow": be_slow,
    "move-blocks": move_blocks,
    "change-strategy": change_strategy,
    "run-short": run_short,
    "run-short-compressed": run_short_compressed,
    "measure-links": measure_links,
    "split-checkpoint": split_checkpoint,
    "leave-out": leave_out,
    "refuse": refuse,
}


if __name__ == "__main__":
    main(lambda name, rank, folder: BEHAVIOURS[name](name, rank, folder))
