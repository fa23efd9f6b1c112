"""The memory that a training step is said to need, against what it took: the planner's estimate."""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.figures import Figure, Outcome
from benchmarks.models import MODELS, Case, measure_peak_bytes
from training.plan.memory import OptimizerCost, measure_optimizer, peak_bytes, trace_step
from training.plan.types import CheckpointingName, Plan, PrecisionName

FIGURES = (
    Figure("estimate_error_percent_max", "%", "farthest from the measured peak", target=2),
    Figure("estimate_ms_max", "ms", "slowest model, the first estimate", target=300),
    Figure("estimate_candidate_ms_max", "ms", "slowest further candidate of a model", target=10),
)
WAYS: tuple[tuple[PrecisionName, CheckpointingName], ...] = (
    ("fp32", "none"),
    ("bf16", "none"),
    ("fp32", "full"),
    ("fp32", "selective"),
)
BATCH_SIZES = (2, 8, 16)
ROUNDS = 5


def measure() -> Outcome:
    """Every model with every way to train and batch size; the oracle is torch's MemTracker."""
    torch.manual_seed(0)
    outcome = Outcome()
    adam = measure_optimizer(make_adam, on_gpu=False)
    rows = [row for case in MODELS for row in _measure_model(case, adam)]
    times = {case.name: _time_estimate(case, adam) for case in MODELS}
    outcome.figures["estimate_error_percent_max"] = max(abs(row["error_percent"]) for row in rows)
    outcome.figures["estimate_ms_max"] = max(first for first, _ in times.values())
    outcome.figures["estimate_candidate_ms_max"] = max(further for _, further in times.values())
    outcome.details = {"estimates": rows, "ms": {name: list(took) for name, took in times.items()}}
    return outcome


def make_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def _measure_model(case: Case, adam: OptimizerCost) -> list[dict[str, Any]]:
    rows = []
    for precision, checkpointing in WAYS:
        model = case.make()
        footprint = trace_step(
            model, case.sample, case.loss_fn, precision=precision, checkpointing=checkpointing
        )
        for batch_size in BATCH_SIZES:
            plan = Plan(batch_size=batch_size, precision=precision, activation_checkpointing=checkpointing)
            said = peak_bytes(footprint, plan, adam)
            took = measure_peak_bytes(model, case.sample, case.loss_fn, plan)
            rows.append(
                {
                    "model": case.name,
                    "precision": precision,
                    "checkpointing": checkpointing,
                    "batch_size": batch_size,
                    "estimate_bytes": round(said),
                    "measured_bytes": round(took),
                    "error_percent": round(100 * (said / took - 1), 3),
                }
            )
    return rows


def _time_estimate(case: Case, adam: OptimizerCost) -> tuple[float, float]:
    """Milliseconds of the first estimate of a model, and of another batch size; the medians."""
    model = case.make()
    plan = Plan(batch_size=8)
    first = []
    for _ in range(ROUNDS):
        gc.collect()
        first.append(_took_ms(lambda: peak_bytes(trace_step(model, case.sample, case.loss_fn), plan, adam)))
    footprint = trace_step(model, case.sample, case.loss_fn)
    further = [
        _took_ms(lambda size=size: peak_bytes(footprint, Plan(batch_size=size), adam))  # type: ignore[misc]  # bound now
        for size in range(1, 20)
    ]
    return sorted(first)[ROUNDS // 2], max(further)


def _took_ms(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) * 1000
