"""One process that drives several GPUs: torch's DataParallel, for scripts that cannot start ranks."""

import torch
from torch import nn

from training.config import ConfigError
from training.plan.types import Plan
from training.strategies.single import Single


class Dp(Single):
    """Splits each batch over the GPUs; slower than "ddp", which is to be preferred.

    Raises:
        ConfigError: there is no GPU, or one of ``device_ids`` is not there.
    """

    def __init__(self, plan: Plan, device: torch.device, device_ids: list[int] | None = None) -> None:
        if device.type != "cuda":
            raise ConfigError("strategy 'dp' drives GPUs, and there is none; use 'single', or 'ddp' on CPUs.")
        there = list(range(torch.cuda.device_count()))
        if missing := sorted(set(device_ids or []) - set(there)):
            raise ConfigError(f"device_ids has {missing}; there are {there}.")
        super().__init__(plan, device)
        self.device_ids = device_ids or there

    def prepare(self, model: nn.Module) -> nn.Module:
        model.to(self.device)
        return nn.DataParallel(model, device_ids=self.device_ids) if len(self.device_ids) > 1 else model
