"""Cheaper exchanges between replicas: compressed gradients, or averaged weights every few steps."""

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from training.config import ConfigError

POWER_SGD_RANK = 2
POWER_SGD_FROM_STEP = 10  # earlier gradients change too fast to reuse the last step's directions


def register_hook(model: DistributedDataParallel, name: str, device: torch.device) -> None:
    """Compress gradients to half their bytes ("fp16", "bf16") or to low-rank factors ("powersgd").

    PowerSGD (Vogels et al., 2019) adds its compression error to the next step.

    Raises:
        ConfigError: "bf16" without GPUs: gloo cannot add such numbers.
    """
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "bf16":
        if device.type != "cuda":
            raise ConfigError("comm_hook 'bf16' needs GPUs: gloo cannot add bf16; use 'fp16' or 'powersgd'.")
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWER_SGD_RANK,
            start_powerSGD_iter=POWER_SGD_FROM_STEP,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class LocalSgd:
    """Averages the weights of all ranks every few steps (Stich, "Local SGD Converges Fast", 2019).

    In between, ranks differ; buffers such as running statistics are never averaged.
    """

    def __init__(self, model: nn.Module, every_steps: int) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._every_steps = every_steps
        self._steps = 0

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % self._every_steps == 0:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in self._parameters:
            by_type.setdefault(parameter.dtype, []).append(parameter.data)
        for weights in by_type.values():
            flat = torch.cat([weight.reshape(-1) for weight in weights])
            distributed.all_reduce(flat)
            flat /= distributed.get_world_size()
            parts = torch.split(flat, [weight.numel() for weight in weights])
            for weight, part in zip(weights, parts, strict=True):
                weight.copy_(part.view_as(weight))
