"""Mixed precision: autocast and gradient scaling, with weights in fp32."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from training.config.plan import PrecisionName

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_autocast(
    precision: PrecisionName, device: torch.device
) -> Callable[[], AbstractContextManager[Any]]:
    """Return the context manager for each forward pass and loss."""
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, _TYPES[precision])


def has_bf16(device: torch.device) -> bool:
    """Return whether "auto" means bf16 here; CPUs without matrix units are slower with it."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


class Scaler:
    """Keeps small fp16 gradients from becoming zero, by torch's GradScaler; does nothing for other types.

    A step with gradients that are not finite is skipped, and the scale halved, on all ranks alike: gradients
    are exchanged before this check.
    """

    def __init__(self, precision: PrecisionName, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
        self.used = self._scaler is not None

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss) if self._scaler else loss

    def unscale(self, optimizer: Optimizer) -> None:
        """Restore the true size of the gradients, before clipping."""
        if self._scaler:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        if self._scaler:
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            optimizer.step()

    def state_dict(self) -> Mapping[str, Any] | None:
        return self._scaler.state_dict() if self._scaler else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if self._scaler and state:
            self._scaler.load_state_dict(dict(state))
