"""The memory that a training step is said to need, against what it took: the planner's estimate."""

import gc
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from benchmarks.figures import Figure, Outcome
from benchmarks.models import MODELS, Case, measure_peak_bytes
from training.config.plan import CheckpointingName, Plan, PrecisionName
from training.memory.autotune import Found, clear_memory, find_batch_size
from training.memory.meters import HostMeter
from training.plan.memory import OptimizerCost, peak_bytes
from training.plan.tracing import measure_optimizer, trace_step

FIGURES = (
    Figure("estimate_error_percent_max", "%", "farthest from the measured peak", target=2),
    Figure("estimate_ms_max", "ms", "slowest model, the first estimate", target=300),
    Figure("estimate_candidate_ms_max", "ms", "slowest further candidate of a model", target=10),
    Figure("oom_trials_max", "", "most batches tried to find the one that fits, of all models", target=4),
    Figure(
        "oom_batch_min", "", "the batch found over the largest that fits, worst model", 0.9, at_least=True
    ),
)
WAYS: tuple[tuple[PrecisionName, CheckpointingName], ...] = (
    ("fp32", "none"),
    ("bf16", "none"),
    ("fp32", "full"),
    ("fp32", "selective"),
)
BATCH_SIZES = (2, 8, 16)
ROUNDS = 5
LARGEST = {
    "gpt": 40,
    "residual": 40,
    "mlp": 2048,
}  # samples that just fit; weights alone do not fill the device


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
    found = {case.name: _find_batch(case) for case in MODELS}
    outcome.figures["oom_trials_max"] = max(len(each.trials) for each in found.values())
    outcome.figures["oom_batch_min"] = min(each.batch_size / LARGEST[name] for name, each in found.items())
    outcome.details = {
        "batches": {name: [asdict(trial) for trial in each.trials] for name, each in found.items()},
        "estimates": rows,
        "ms": {name: list(took) for name, took in times.items()},
    }
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


def _find_batch(case: Case) -> Found:
    """On a device that has just enough memory for the model's ``LARGEST`` samples."""
    model, largest = case.make(), LARGEST[case.name]

    def attempt(size: int) -> None:
        inputs, targets = default_collate([case.sample] * size)
        try:
            case.loss_fn(model(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        finally:
            model.zero_grad(set_to_none=True)

    held = [*model.parameters(), *model.buffers()]
    with HostMeter(1 << 50, held) as meter:
        attempt(largest)
    clear_memory()
    return find_batch_size(attempt, meter=HostMeter(meter.peak_bytes, held), most=4 * largest)


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
