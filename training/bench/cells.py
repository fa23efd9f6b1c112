"""Cells of the grid: one per strategy, number of devices and batch size.  Imports no torch."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, TypedDict

NEEDS_GPU = {
    "dp": "dp drives several GPUs from one process; there is no GPU here.",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A combination to measure; ``gpus`` counts ranks, which run on the CPU if there is no GPU."""

    strategy: str
    gpus: int
    batch_size: int  # samples of one data-parallel rank in a micro-batch


class Request(TypedDict):
    """What a rank of a cell is asked to measure."""

    strategy: Any  # a StrategyName, checked by TrainConfig
    gpus: int
    batch_size: int
    steps: int
    precision: Any  # as above, a PrecisionName
    model: str | None
    data: str | None
    scratch: str
    result: str  # path of the answer, without the rank


class RankResult(TypedDict):
    """What a rank of a cell measured."""

    samples_per_step: int
    step_s: list[float]
    peak_bytes: int
    communication: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a cell: ``step_s``, or the reason why it is empty."""

    cell: Cell
    samples_per_step: int = 0
    step_s: list[float] = field(default_factory=list)  # of each timed step
    peak_bytes: int = 0  # of the rank with the highest peak
    communication: float | None = None  # share of a step spent in collectives; None: unknown
    not_measured: str = ""

    @property
    def samples_per_s(self) -> float:
        """Throughput by the median step; 0 if nothing was measured."""
        return self.samples_per_step / median(self.step_s) if self.step_s else 0.0

    @property
    def spread_percent(self) -> float:
        """Half the interquartile range of the step time, in percent of its median."""
        if len(self.step_s) < 4:
            return 0.0
        ordered = sorted(self.step_s)
        low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
        return 100 * (high - low) / 2 / median(ordered)

    def to_json(self) -> Mapping[str, Any]:
        return {
            **asdict(self),
            "samples_per_s": round(self.samples_per_s, 2),
            "spread_percent": round(self.spread_percent, 1),
        }


def from_json(row: Mapping[str, Any]) -> Measured:
    """Read what ``to_json`` gave."""
    values = {name: row[name] for name in Measured.__slots__ if name in row and name != "cell"}
    return Measured(cell=Cell(**row["cell"]), **values)


def make_cells(strategies: Sequence[str], gpus: Sequence[int], batch_sizes: Sequence[int]) -> list[Cell]:
    """List all combinations without duplicates, small ones first."""
    wanted = itertools.product(dict.fromkeys(strategies), sorted({*gpus}), sorted({*batch_sizes}))
    return [Cell(*each) for each in wanted]


def why_not(cell: Cell, devices: int, *, has_gpu: bool) -> str:
    """Return why a cell cannot be measured here; empty if it can."""
    if not has_gpu and cell.strategy in NEEDS_GPU:
        return NEEDS_GPU[cell.strategy]
    if has_gpu and cell.gpus > devices:
        return f"{cell.gpus} GPUs are requested and {devices} are visible."
    if cell.strategy == "single" and cell.gpus > 1:
        return "single uses one device."
    if cell.strategy in ("pipeline", "tensor", "placed") and cell.gpus == 1:
        return f"{cell.strategy} splits the model over at least two devices."
    return ""


def scaling_efficiency(measured: Sequence[Measured]) -> dict[Cell, float]:
    """Return throughput relative to n times the fastest single device with the same batch size, in percent."""
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
