"""As DDP, but each rank keeps the optimizer's state of its share of the parameters: ZeRO stage 1."""

from inspect import signature
from typing import Any, cast

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from training.strategies.ddp import Ddp


class Zero1(Ddp):
    gathers = True

    def shard_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """An optimizer of the same class, groups and settings; ``optimizer`` must be new."""
        known = signature(type(optimizer).__init__).parameters  # AdamW keeps a default that it does not take
        settings = {name: value for name, value in optimizer.defaults.items() if name in known}
        groups = [{**group} for group in optimizer.param_groups]
        return ZeroRedundancyOptimizer(groups, type(optimizer), **settings)

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        cast(ZeroRedundancyOptimizer, optimizer).consolidate_state_dict(to=0)
        if self.ranks.rank != 0:
            return {}
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
