"""The learning rate for more ranks than it was found with."""

from math import sqrt

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR

from training.config import TrainConfig

_WARMUP_SHARE = 0.05  # of the run, where the rate was raised (Goyal et al., 2017, section 2.2)


def scale_rate(optimizer: Optimizer, config: TrainConfig, data_ranks: int) -> None:
    """Raise the rate of every group with the effective batch; before a scheduler is made."""
    factor = {"none": 1.0, "linear": float(data_ranks), "sqrt": sqrt(data_ranks)}[config.lr_scaling]
    for group in optimizer.param_groups:
        group["lr"] *= factor


def warmup_steps(config: TrainConfig, total_steps: int, data_ranks: int) -> int:
    if config.lr_warmup_steps is not None:
        return config.lr_warmup_steps
    raised = config.lr_scaling != "none" and data_ranks > 1
    return round(total_steps * _WARMUP_SHARE) if raised else 0


def add_warmup(optimizer: Optimizer, scheduler: LRScheduler | None, steps: int) -> LRScheduler | None:
    """Raise the rate in equal steps up to what it should be; ``scheduler`` begins after that."""
    if steps == 0:
        return scheduler
    if scheduler is not None:  # it has set the rate of its own first step, which is not ours
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
    warmup = LinearLR(optimizer, start_factor=1 / (steps + 1), total_iters=steps)
    return warmup if scheduler is None else SequentialLR(optimizer, [warmup, scheduler], milestones=[steps])
