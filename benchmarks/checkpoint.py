"""What a checkpoint of 200 MB costs a training: the wait for its copy, and all of it at the measured frequency."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.figures import Figure, Outcome
from benchmarks.stats import median, spread
from training.checkpoint import Checkpointer
from training.checkpoint.policy import SavePolicy
from training.report import Reporter

FIGURES = (
    Figure("ckpt_stall_ms", "ms", "the training waits for a save of 200 MB, median", target=25),
    Figure(
        "ckpt_stall_ratio_torch_save", "", "the same over torch.save and fsync, median of pairs", target=0.2
    ),
    Figure("ckpt_total_percent", "%", "of the time spent on checkpoints at checkpoint_every=auto", target=2),
    Figure("ckpt_torch_save_ms", "ms", "torch.save and fsync of the same state, median"),
)
STATE_BYTES = 200_000_000
ROUNDS = 11
TRAIN_S = 60.0


def measure() -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        _measure_stall(Path(name), outcome)
        _measure_total(Path(name), outcome)
    return outcome


def _measure_stall(folder: Path, outcome: Outcome) -> None:
    """Both write the same state in turn; what one has written is durable before the other begins."""
    state = make_state(STATE_BYTES)
    checkpointer = Checkpointer(folder / "ours", keep_last=1, reporter=Reporter(folder / "events"))
    checkpointer.allocate(state)
    ours_ms, theirs_ms = [], []
    for number in range(ROUNDS + 1):
        checkpointer.wait()
        ours = time_ms(lambda step=number: checkpointer.save(state, step + 1))  # type: ignore[misc]  # a default binds it
        checkpointer.wait()
        theirs = time_ms(lambda: _save_and_sync(state, folder / "theirs.pt"))
        if number:  # the first makes the pages that the others use again
            ours_ms.append(ours)
            theirs_ms.append(theirs)
    checkpointer.close()
    ratios = [mine / other for mine, other in zip(ours_ms, theirs_ms, strict=True)]
    outcome.figures["ckpt_stall_ms"] = median(ours_ms)
    outcome.figures["ckpt_torch_save_ms"] = median(theirs_ms)
    outcome.figures["ckpt_stall_ratio_torch_save"] = median(ratios)
    outcome.details["stall_ms"] = spread(ours_ms)
    outcome.details["torch_save_ms"] = spread(theirs_ms)


def _measure_total(folder: Path, outcome: Outcome) -> None:
    """A training that saves when the policy says so: the waits, and what steps took longer during a write."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(64, 512)
    policy = SavePolicy()
    checkpointer = Checkpointer(folder / "total", reporter=Reporter(folder / "events2"))
    calm_s: list[float] = []
    written_s: list[float] = []
    stalls_s: list[float] = []
    step, end_s = 0, time.monotonic() + TRAIN_S
    while time.monotonic() < end_s:
        start_s = time.perf_counter()
        nn.functional.mse_loss(model(inputs), inputs).backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        took_s, writing = time.perf_counter() - start_s, checkpointer.is_writing
        policy.note_step(took_s, writing=writing)
        (written_s if writing else calm_s).append(took_s)
        if step == 20 or policy.is_due():  # the policy knows nothing before the first
            checkpointer.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
            policy.note_save(checkpointer.stall_s)
            stalls_s.append(checkpointer.stall_s)
    checkpointer.close()
    longer_s = sum(written_s) - median(calm_s) * len(written_s)
    total_s = sum(calm_s) + sum(written_s) + sum(stalls_s)
    outcome.figures["ckpt_total_percent"] = 100 * (sum(stalls_s) + max(0.0, longer_s)) / total_s
    outcome.details["auto"] = {
        "saves": len(stalls_s),
        "steps": step,
        "steps_during_writes": len(written_s),
        "interval_s": round(policy.interval_s, 2),
        "stall_ms": spread([1000 * each for each in stalls_s]),
        "longer_steps_s": round(longer_s, 3),
    }


def make_state(size_bytes: int) -> dict[str, Any]:
    """Weights and two moments of a model, in 48 tensors of equal size."""
    parts = 48
    tensors = {str(number): torch.randn(size_bytes // 4 // parts) for number in range(parts)}
    return {
        "step": 1,
        "model": dict(list(tensors.items())[:16]),
        "optimizer": dict(list(tensors.items())[16:]),
    }


def time_ms(act: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start_s)


def _save_and_sync(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
