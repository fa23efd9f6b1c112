"""What a training shows of itself to its own program: throughput, memory, losses, communication."""

import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from training.pictures import write_curves

if TYPE_CHECKING:
    from training.multi_gpu import MultiGPUTrainer


class MetricsCollector:
    """Named values over a training: throughput, memory, loss, communication; their mean and newest."""

    def __init__(self) -> None:
        self.history: dict[str, list[float]] = {}

    def record(self, **values: float | Tensor) -> None:
        for name, value in values.items():
            self.history.setdefault(name, []).append(float(value))

    def collect(self, trainer: "MultiGPUTrainer") -> dict[str, float]:
        """What can be read now: memory, and the share of a step spent in collectives where it is known."""
        now: dict[str, float] = {"memory_gib": _memory_bytes(trainer.device) / 2**30}
        share = trainer.run.strategy.measure_communication()
        if share is not None:
            now["communication_overhead"] = share
        self.record(**now)
        return now

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            name: {"mean": fmean(values), "last": values[-1], "max": max(values)}
            for name, values in self.history.items()
        }


class PerformanceMonitor:
    """Throughput and memory from batch to batch."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._rows: list[dict[str, float]] = []

    def start_monitoring(self) -> None:
        self._rows, self._before_s = [], time.perf_counter()

    def record_metrics(self, loss: float | Tensor, batch_size: int, num_gpus: int = 1) -> None:
        """After each batch; ``batch_size`` is that of one device."""
        now_s = time.perf_counter()
        took_s, self._before_s = now_s - self._before_s, now_s
        self._rows.append(
            {
                "loss": float(loss),
                "throughput": batch_size * num_gpus / max(took_s, 1e-9),
                "memory_gib": _memory_bytes(None) / 2**30,
            }
        )

    def get_summary(self) -> dict[str, float]:
        """Samples a second, GiB, losses; empty before the first batch."""
        if not self._rows:
            return {}
        return {
            "avg_throughput": fmean(row["throughput"] for row in self._rows),
            "max_memory_usage": max(row["memory_gib"] for row in self._rows),
            "avg_loss": fmean(row["loss"] for row in self._rows),
            "final_loss": self._rows[-1]["loss"],
            "steps": float(len(self._rows)),
        }

    def plot_metrics(self, path: Path | str) -> Path:
        """Write loss, throughput and memory by batch as .png, .pdf, .svg or .html; returns where.

        Raises:
            ConfigError: the name ends otherwise, or the format needs a package that is not installed.
        """
        target = Path(path)
        names = ("loss", "throughput", "memory_gib")
        write_curves({name: [row[name] for row in self._rows] for name in names}, target)
        return target


def _memory_bytes(device: torch.device | None) -> int:
    """The most that was in use: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated(device)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
