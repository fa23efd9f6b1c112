"""One process that drives several GPUs: torch's DataParallel, for scripts that cannot start ranks."""

from collections.abc import Sequence

import torch
from torch import nn

from training.config import ConfigError
from training.plan.types import Plan
from training.strategies.single import Single


class Dp(Single):
    """Splits each batch over the GPUs; slower than "ddp", which is to be preferred.

    Raises:
        ConfigError: there is no GPU.
    """

    def __init__(self, plan: Plan, device: torch.device, device_ids: Sequence[int] | None = None) -> None:
        if device.type != "cuda":
            raise ConfigError("strategy 'dp' drives GPUs, and there is none; use 'single', or 'ddp' on CPUs.")
        super().__init__(plan, device)
        self.device_ids = [*(device_ids or range(torch.cuda.device_count()))]

    def prepare(self, model: nn.Module) -> nn.Module:
        model.to(self.device)
        return nn.DataParallel(model, device_ids=self.device_ids) if len(self.device_ids) > 1 else model
