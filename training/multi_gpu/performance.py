"""Metrics of a training for its own program: throughput, memory, losses, communication."""

import time
from pathlib import Path
from statistics import fmean
from typing import Protocol

import torch
from torch import Tensor

from training.loop.run import Run
from training.multi_gpu.pictures import write_curves


class _Running(Protocol):
    """A trainer of this package, which this module cannot import."""

    run: Run


class MetricsCollector:
    """Records named values over a training; summarises their mean, maximum and newest value."""

    def __init__(self) -> None:
        self.history: dict[str, list[float]] = {}

    def record(self, **values: float | Tensor) -> None:
        for name, value in values.items():
            self.history.setdefault(name, []).append(float(value))

    def collect(self, trainer: _Running) -> dict[str, float]:
        """Record memory, and the share of a step spent in collectives if it is known."""
        now: dict[str, float] = {"memory_gib": _memory_bytes(trainer.run.strategy.device) / 2**30}
        share = trainer.run.strategy.measure_communication()
        if share is not None:
            now["communication_overhead"] = share
        utilization = _gpu_utilization(trainer.run.strategy.device)
        if utilization is not None:
            now["gpu_utilization"] = utilization
        self.record(**now)
        return now

    def get_metrics(self) -> dict[str, float | list[float] | None]:
        """Return the metrics by their published names; None for what was not measured (no GPU, one rank)."""
        history = self.history
        return {
            "training_time": sum(history.get("training_time", [])),
            "throughput": _mean(history.get("throughput")),
            "memory_usage": max(history.get("memory_gib", [0.0])),
            "gpu_utilization": _mean(history.get("gpu_utilization")),
            "communication_overhead": _mean(history.get("communication_overhead")),
            "loss_history": [*history.get("loss", [])],
        }

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            name: {"mean": fmean(values), "last": values[-1], "max": max(values)}
            for name, values in self.history.items()
        }


class PerformanceMonitor:
    """Records throughput and memory of each batch."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._rows: list[dict[str, float]] = []

    def start_monitoring(self) -> None:
        self._rows, self._last_s = [], time.perf_counter()

    def record_metrics(self, loss: float | Tensor, batch_size: int, num_gpus: int = 1) -> None:
        """Record a batch; ``batch_size`` is that of one device."""
        now_s = time.perf_counter()
        took_s, self._last_s = now_s - self._last_s, now_s
        self._rows.append(
            {
                "loss": float(loss),
                "throughput": batch_size * num_gpus / max(took_s, 1e-9),
                "memory_gib": _memory_bytes(None) / 2**30,
            }
        )

    def get_summary(self) -> dict[str, float]:
        """Return samples per second, GiB and losses; empty before the first batch."""
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
        """Write loss, throughput and memory by batch as .png, .pdf, .svg or .html; return the path.

        Raises:
            ConfigError: the name has another ending, or the format needs a package that is not installed.
        """
        target = Path(path)
        names = ("loss", "throughput", "memory_gib")
        write_curves({name: [row[name] for row in self._rows] for name in names}, target)
        return target


def _mean(values: list[float] | None) -> float | None:
    return fmean(values) if values else None


def _gpu_utilization(device: torch.device) -> float | None:
    """Return the percent of time with work on the GPU, if NVML can be asked."""
    if device.type != "cuda":
        return None
    try:
        return float(torch.cuda.utilization(device))
    except (ModuleNotFoundError, RuntimeError):  # no pynvml, or a driver without these figures
        return None


def _memory_bytes(device: torch.device | None) -> int:
    """Return the peak memory of the GPU, or of this process if there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated(device)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
