"""One rank of a cell: ``cell.py REQUEST`` trains a few steps and writes its measurements to a file."""

import itertools
import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict
from torch.utils.data import TensorDataset

from training import TrainConfig, Trainer
from training.bench.cells import RankResult, Request
from training.config.model_file import load_model_file
from training.report import default_reporter
from training.watch.communication import StepProfile

WARM_UP_STEPS = 3
WIDTH, DEPTH = 256, 8


class Block(nn.Module):
    """The feed-forward half of a transformer block, which every strategy can split."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = inputs + self.fc2(self.act(self.fc1(self.norm(inputs))))
        return result


def build_model() -> nn.Module:
    return nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])


def build_dataset(samples: int) -> TensorDataset:
    inputs = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.flip(1))


def load_user_model(path: Path, data: str | None) -> tuple[nn.Module, Any, Mapping[str, Any]]:
    """Load model, dataset and the other arguments of ``fit`` from a model file."""
    module = load_model_file(path)
    model, built = module.build_model(), module.build_dataset(data)
    options = {"loss_fn": "loss_fn", "optimizer": "configure_optimizer"}
    return (
        model,
        built[0] if isinstance(built, tuple) else built,
        {option: getattr(module, name, None) for option, name in options.items()},
    )


def main(request: Request) -> None:
    default_reporter().active = False
    size, gpus = request["batch_size"], request["gpus"]
    steps = WARM_UP_STEPS + request["steps"] + 1  # the last one is profiled, not timed
    torch.manual_seed(0)
    if request["model"]:
        model, dataset, options = load_user_model(Path(request["model"]), request["data"])
    else:
        model, dataset, options = build_model(), build_dataset(size * gpus * 4), {}
    clocks: list[_Clock] = []

    def make_clock(optimizer: torch.optim.Optimizer) -> _Clock:
        clocks.append(_Clock(optimizer, steps))
        return clocks[0]

    config = TrainConfig(
        strategy=request["strategy"],
        batch_size=size,
        precision=request["precision"],
        epochs=steps,
        max_steps=steps,
        checkpoint_every=None,
        checkpoint_dir=request["scratch"],
        resume=False,
    )
    before_bytes = _resident_bytes()
    state = Trainer(config).fit(model, dataset, scheduler=make_clock, **options)
    strategy = state.strategy
    peak_bytes = (
        torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _peak_bytes() - before_bytes
    )
    result: RankResult = {
        "samples_per_step": strategy.plan.samples_per_step,
        "step_s": clocks[0].step_s()[-request["steps"] - 1 : -1],
        "peak_bytes": peak_bytes,
        "communication": clocks[0].communication if gpus > 1 else None,
    }
    Path(f"{request['result']}.{strategy.ranks.rank}").write_text(json.dumps(result))


class _Clock(torch.optim.lr_scheduler.LRScheduler):
    """A scheduler that only records the end of each step, since strategies may wrap the optimizer.

    It profiles the last of ``steps``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        self._ends_s: list[float] = []
        self._steps = steps
        self._profile = StepProfile()
        self.communication = 0.0  # share of the last step in which a collective was running
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> StateDict:
        return {}  # checkpoints need no clock

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._ends_s.append(time.perf_counter())
        done = len(self._ends_s) - 1  # the constructor calls this once
        if done == self._steps - 1:
            self._profile.start()
        elif done == self._steps:
            self.communication = self._profile.stop()

    def step_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self._ends_s)]


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak_bytes() -> int:
    """Return the peak memory of this process; ``_reset_peak`` excluded the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # some sandboxes forbid it: then the parent's peak is included
        return


if __name__ == "__main__":
    _reset_peak()
    main(json.loads(sys.argv[1]))
