"""The measured peak of a real step on the CPU, counted by torch's own tracker."""

from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from training.memory.activation_checkpointing import checkpoint_activations, restore_activations
from training.plan.types import Plan
from training.state import LossFn


def measure_peak_bytes(model: torch.nn.Module, sample: Any, loss_fn: LossFn, plan: Plan) -> float:
    """The most alive in the second step with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = (torch.stack([torch.as_tensor(each)] * plan.batch_size) for each in sample)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.precision == "bf16"):
            loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()

    blocks = checkpoint_activations(model, plan.activation_checkpointing)
    step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, inputs, targets)
    with tracker:
        step()
    restore_activations(blocks)
    optimizer.zero_grad(set_to_none=True)
    peak = tracker.get_tracker_snapshot("peak")
    return float(next(iter(peak.values()))["Total"])
