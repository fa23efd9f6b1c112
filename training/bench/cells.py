"""What is measured: one cell for each strategy, number of devices and batch size.  No torch here."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

NEEDS_GPU = {
    "dp": "dp drives several GPUs from one process; there is no GPU here.",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """``gpus`` counts ranks; where there is no GPU they run on the CPU."""

    strategy: str
    gpus: int
    batch_size: int  # samples of one data-parallel rank in a micro-batch


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a cell; either ``step_s`` or the reason why there is nothing."""

    cell: Cell
    samples_per_step: int = 0
    step_s: list[float] = field(default_factory=list)  # of each timed step
    peak_bytes: int = 0  # of the rank that took most
    communication: float | None = None  # share of a step that ranks spent exchanging; None: unknown
    not_measured: str = ""

    @property
    def samples_per_s(self) -> float:
        """By the median step; 0 where nothing was measured."""
        return self.samples_per_step / median(self.step_s) if self.step_s else 0.0

    @property
    def spread_percent(self) -> float:
        """Half of the range between the quartiles of the step time, over its median."""
        if len(self.step_s) < 4:
            return 0.0
        ordered = sorted(self.step_s)
        low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
        return 100 * (high - low) / 2 / median(ordered)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "samples_per_s": round(self.samples_per_s, 2),
            "spread_percent": round(self.spread_percent, 1),
        }


def from_json(row: dict[str, Any]) -> Measured:
    """What ``to_json`` gave."""
    known = {name: row[name] for name in Measured.__slots__ if name in row and name != "cell"}
    return Measured(cell=Cell(**row["cell"]), **known)


def make_cells(strategies: Sequence[str], gpus: Sequence[int], batch_sizes: Sequence[int]) -> list[Cell]:
    """All combinations, without repetitions, small ones first."""
    wanted = itertools.product(dict.fromkeys(strategies), sorted({*gpus}), sorted({*batch_sizes}))
    return [Cell(*each) for each in wanted]


def why_not(cell: Cell, devices: int, *, has_gpu: bool) -> str:
    """Why a cell cannot be measured here; empty where it can."""
    if not has_gpu and cell.strategy in NEEDS_GPU:
        return NEEDS_GPU[cell.strategy]
    if has_gpu and cell.gpus > devices:
        return f"{cell.gpus} GPUs are asked for and {devices} are visible."
    if cell.strategy == "single" and cell.gpus > 1:
        return "single uses one device."
    if cell.strategy in ("pipeline", "tensor") and cell.gpus == 1:
        return f"{cell.strategy} splits the model over at least two devices."
    return ""


def scaling_efficiency(measured: Sequence[Measured]) -> dict[Cell, float]:
    """Throughput over that of as many times the fastest single device with the same batch size, in percent."""
    alone: dict[int, float] = {}
    for each in measured:
        if each.cell.gpus == 1 and each.step_s:
            size = each.cell.batch_size
            alone[size] = max(alone.get(size, 0.0), each.samples_per_s)
    return {
        each.cell: 100 * each.samples_per_s / (alone[each.cell.batch_size] * each.cell.gpus)
        for each in measured
        if each.step_s and alone.get(each.cell.batch_size)
    }
