"""Ten architectures at several batches and precisions under one limit of memory: Berth, a plain loop and Lightning, in turns."""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.evaluation_page import write_page
from benchmarks.figures import Figure, Outcome
from training import TrainConfig, Trainer
from training.callbacks import Callback
from training.config.plan import MEMORY_VARIABLE, Plan, PrecisionName
from training.config.words import summarise
from training.memory.autotune import is_out_of_memory
from training.memory.meters import HostMeter, make_meter
from training.plan.search import DoesNotFit
from training.plan.training import Training
from training.plan.trial import Trial

FIGURES = (
    Figure("ooms_plain", "runs", "plain loops that ran out of memory"),
    Figure("ooms_lightning", "runs", "the same of Lightning"),
    Figure("ooms_ours", "runs", "the same of Berth", 0),
    Figure("refused_ours", "runs", "runs that Berth refused before they began, as nothing fits", 0),
    Figure("peak_ratio", "x", "peak memory, Berth over plain, median of where both ran", 1.0),
    Figure("speed_ratio_min", "x", "samples/s, Berth over plain, geometric mean of an architecture, the least", 0.95, at_least=True),
    Figure("cells", "runs", "architectures x batches x precisions"),
)  # fmt: skip
ON_GPU = torch.cuda.is_available()
BATCHES = (256, 2048) if ON_GPU else (16, 96)
PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "bf16")
LIMIT_BYTES = (192 if ON_GPU else 24) * 2**20
STEPS = 3  # under the limit: the second has the optimizer's state
TURNS, TIMED_STEPS, WARM_UP = 3, 8, 3
RATE = 1e-3


@dataclass(slots=True)
class Cell:
    """What one architecture did with one batch and precision."""

    architecture: str
    batch: int
    precision: str
    plain: str = ""  # "ran" or "out of memory"
    lightning: str = ""
    ours: str = ""
    plan: str = ""
    plain_peak_bytes: int | None = None
    ours_peak_bytes: int | None = None
    plain_samples_s: float | None = None
    ours_samples_s: float | None = None


class Repeated(Dataset[Any]):
    def __init__(self, sample: tuple[Any, Any], length: int) -> None:
        self.sample, self.length = sample, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if number >= self.length:
            raise IndexError(number)
        return self.sample


def measure() -> Outcome:
    outcome = evaluate()
    write_page([Cell(**cell) for cell in outcome.details["cells"]], LIMIT_BYTES)
    return outcome


def evaluate(architectures: Sequence[Architecture] = ARCHITECTURES) -> Outcome:
    """Run all cells of some architectures; write no page."""
    torch.set_num_threads(1)
    outcome = Outcome()
    if find_spec("lightning") is None:
        outcome.missing["ooms_lightning"] = "lightning is not installed"
    cells = [
        _measure_cell(architecture, batch, precision)
        for architecture, batch, precision in product(architectures, BATCHES, PRECISIONS)
    ]
    summarise_cells(cells, outcome)
    outcome.details = {"limit_bytes": LIMIT_BYTES, "cells": [asdict(cell) for cell in cells]}
    return outcome


def summarise_cells(cells: list[Cell], outcome: Outcome) -> None:
    outcome.figures["cells"] = len(cells)
    for name in ("plain", "ours", "lightning"):
        if f"ooms_{name}" not in outcome.missing:
            outcome.figures[f"ooms_{name}"] = sum(getattr(cell, name) == "out of memory" for cell in cells)
    outcome.figures["refused_ours"] = sum(cell.ours == "refused" for cell in cells)
    peaks = [
        cell.ours_peak_bytes / cell.plain_peak_bytes
        for cell in cells
        if cell.ours_peak_bytes and cell.plain_peak_bytes
    ]
    outcome.figures["peak_ratio"] = statistics.median(peaks)
    speeds: dict[str, list[float]] = {}
    for cell in cells:
        if cell.ours_samples_s and cell.plain_samples_s:
            speeds.setdefault(cell.architecture, []).append(cell.ours_samples_s / cell.plain_samples_s)
    means = {name: math.exp(statistics.fmean(map(math.log, each))) for name, each in speeds.items()}
    outcome.figures["speed_ratio_min"] = min(means.values())


def _measure_cell(architecture: Architecture, batch: int, precision: PrecisionName) -> Cell:
    cell = Cell(architecture.name, batch, precision)
    plain, found = _limited(lambda: PlainLoop(architecture, batch, precision).run(STEPS))
    cell.plain, cell.plain_peak_bytes = plain, found
    if find_spec("lightning") is not None:
        cell.lightning, _ = _limited(lambda: run_lightning(architecture, batch, precision))
    ours = OurRun(architecture, batch, precision)
    try:
        cell.ours, _ = _limited(lambda: ours.run(STEPS))
    except DoesNotFit:
        cell.ours = "refused"
        return cell
    cell.plan = summarise(ours.plan)
    training = ours.make_training()  # a trial copies its model, so that one is counted
    _, cell.ours_peak_bytes = _limited(lambda: ours.steps(training, STEPS), 1 << 60)
    if cell.plain == "ran" and cell.ours == "ran":
        cell.plain_samples_s, cell.ours_samples_s = _time(architecture, batch, precision)
    return cell


def _limited(work: Callable[[], object], limit_bytes: int = LIMIT_BYTES) -> tuple[str, int | None]:
    """Run under the limit; return how it ended, and the peak if it ran."""
    with _limit(limit_bytes) as meter:
        try:
            work()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return "out of memory", None
        return "ran", meter.peak_bytes


@contextmanager
def _limit(limit_bytes: int) -> Iterator[Any]:
    """Limit what tensors take: on a GPU the allocator's share, on the CPU a meter that fails like one."""
    if not ON_GPU:
        with HostMeter(limit_bytes) as meter:
            yield meter
        return
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0))
    meter = make_meter(torch.device("cuda"))
    meter.start()
    try:
        yield meter
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


DEVICE = torch.device("cuda" if ON_GPU else "cpu")


class PlainLoop:
    """What people write: a loader, a model, AdamW."""

    def __init__(self, architecture: Architecture, batch: int, precision: PrecisionName) -> None:
        torch.manual_seed(0)
        self.architecture, self.batch = architecture, batch
        self.autocast = precision == "bf16"

    def run(self, steps: int) -> list[float]:
        """Return the seconds of each step, of this thread's own clock on the CPU."""
        model = self.architecture.make().to(DEVICE).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        loader = DataLoader(Repeated(self.architecture.sample, steps * self.batch), self.batch)
        took_s, began_s = [], clock_s()
        for inputs, targets in loader:
            inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.autocast):
                loss = self.architecture.loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            took_s.append(clock_s() - began_s)
            began_s = clock_s()
        return took_s


class _Clock(Callback):
    def __init__(self) -> None:
        self.took_s: list[float] = []
        self.began_s = clock_s()

    def before_epoch(self, state: Any) -> None:
        self.began_s = clock_s()

    def after_step(self, state: Any, values: Any) -> None:
        self.took_s.append(clock_s() - self.began_s)
        self.began_s = clock_s()


class OurRun:
    """The same by Berth's Trainer, which is told the device's memory."""

    def __init__(self, architecture: Architecture, batch: int, precision: PrecisionName) -> None:
        torch.manual_seed(0)
        self.architecture, self.batch, self.precision = architecture, batch, precision
        self.plan = Plan()

    def run(self, steps: int) -> list[float]:
        os.environ[MEMORY_VARIABLE] = str(LIMIT_BYTES)
        clock = _Clock()
        try:
            with tempfile.TemporaryDirectory() as folder:
                trainer = Trainer(self._config(folder))
                state = trainer.fit(
                    self.architecture.make(),
                    Repeated(self.architecture.sample, steps * self.batch),
                    loss_fn=self.architecture.loss_fn,
                    callbacks=[clock],
                )
                self.plan = state.strategy.plan
        finally:
            del os.environ[MEMORY_VARIABLE]
        return clock.took_s

    def make_training(self) -> Training:
        return Training(
            TrainConfig(batch_size=self.batch),
            self.architecture.make(),
            Repeated(self.architecture.sample, 1),
            DEVICE,
            self.architecture.loss_fn,
        )

    def steps(self, training: Training, steps: int) -> None:
        """Make steps of the plan that the run ended with, without the checkpointer's copy, which is no device's memory."""
        with Trial(training, self.plan) as trial:
            for _ in range(steps):
                trial.step_s()

    def _config(self, folder: str) -> TrainConfig:
        return TrainConfig(
            batch_size=self.batch,
            precision=self.precision,
            activation_checkpointing="auto",
            checkpoint_every=None,
            checkpoint_dir=folder,
            shuffle=False,
            learning_rate=RATE,
        )


def run_lightning(architecture: Architecture, batch: int, precision: PrecisionName) -> None:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]  # may be untyped or absent
        def __init__(self) -> None:
            super().__init__()
            self.model: nn.Module = architecture.make()

        def training_step(self, batch: Any, _: int) -> Tensor:
            return architecture.loss_fn(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    lightning.Trainer(
        accelerator=DEVICE.type if DEVICE.type == "cpu" else "gpu",
        devices=1,
        max_steps=STEPS,
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), DataLoader(Repeated(architecture.sample, STEPS * batch), batch))


def _time(architecture: Architecture, batch: int, precision: PrecisionName) -> tuple[float, float]:
    """Return samples a second of the plain loop and of ours, which take turns, by the quickest step of each.

    The quickest, because on a busy machine the others contain what else ran.
    """
    steps = WARM_UP + (TIMED_STEPS if batch > min(BATCHES) else 3 * TIMED_STEPS)
    plain, ours = PlainLoop(architecture, batch, precision), OurRun(architecture, batch, precision)
    plain_s: list[float] = []
    ours_s: list[float] = []
    for turn in range(TURNS):
        both: list[tuple[PlainLoop | OurRun, list[float]]] = [(plain, plain_s), (ours, ours_s)]
        for runner, took_s in both if turn % 2 else reversed(both):
            took_s.append(min(runner.run(steps)[WARM_UP:]))
    return batch / min(plain_s), batch / min(ours_s)


def clock_s() -> float:
    """On the CPU this thread's own clock, so that other programs count little; a GPU is waited for."""
    if ON_GPU:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.thread_time()
