"""Batch size by trial on the device, for models that cannot be traced."""

import copy

import torch
from torch.utils.data import default_collate

from training.config.plan import Plan
from training.data import move_to
from training.data.collation import repeat
from training.memory.autotune import Found, find_batch_size, reserve_for_optimizer
from training.memory.meters import make_meter
from training.plan.training import Training
from training.strategies.choose import forward_context


def find_by_trial(training: Training, plan: Plan, usable_bytes: int, *, most: int) -> Found:
    """Find the largest batch of ``plan`` within ``usable_bytes`` of the device, in at most four trials.

    Uses a copy of the model, before ranks are connected: all devices are alike, so one rank tries for all.
    Changes neither the model nor torch's generators.

    Raises:
        DoesNotFit: a single sample does not fit.
    """
    device = training.device
    with torch.random.fork_rng():
        sample = move_to(default_collate([training.sample()]), device)
        model = copy.deepcopy(training.model).to(device).train()
        make = training.make_optimizer
        optimizer = torch.optim.AdamW(model.parameters()) if make is None else make(model)
        around_forward = forward_context(plan, device)

        def attempt(size: int) -> None:
            batch = repeat(sample, size)
            try:
                with around_forward():
                    loss = training.objective.loss(model, batch)
                torch.autograd.backward(loss)
            finally:
                model.zero_grad(set_to_none=True)

        meter = make_meter(device, [*model.parameters(), *model.buffers()])
        reserved_bytes = reserve_for_optimizer(optimizer)
        if plan.dp > 1:  # buckets of the exchange
            reserved_bytes += sum(
                parameter.nbytes for parameter in model.parameters() if parameter.requires_grad
            )
        reserved_bytes += max(0, meter.limit_bytes - usable_bytes)
        return find_batch_size(attempt, meter=meter, most=most, reserve_bytes=reserved_bytes)
