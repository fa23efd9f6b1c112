"""Parameters, gradients and optimizer state split over the ranks: ZeRO stage 3 by torch's ``fully_shard``."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from training.plan.types import Plan
from training.strategies.blocks import find_blocks
from training.strategies.gradients import clip_sharded
from training.strategies.ranks import Ranks
from training.strategies.replicas import make_alike
from training.strategies.split import Split


class Fsdp(Split):
    """Gathers each block's parameters for its forward and again for its backward pass."""

    keeps_gathered: ClassVar[bool] = False

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks) -> None:
        super().__init__(plan, device, ranks)
        self._mesh = init_device_mesh(device.type, (ranks.size,), mesh_dim_names=("dp",))

    def prepare(self, model: nn.Module) -> nn.Module:
        # A model that ends in a Linear returns a view; the warning is about writing into it, which no loss does.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        make_alike(model, self.device)
        offload = OffloadPolicy()
        if self.plan.cpu_offload == "parameters":
            offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        for module in (*find_blocks(model), model):
            fully_shard(
                module, mesh=self._mesh, reshard_after_forward=not self.keeps_gathered, offload_policy=offload
            )
        self._model = model
        return model

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_gradient_sync(last)
        return nullcontext()

    def clip(self, model: nn.Module, max_norm: float) -> None:
        clip_sharded(model.parameters(), max_norm, self.device, self._mesh.get_group(), None)
