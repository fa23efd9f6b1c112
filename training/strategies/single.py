"""One process: on one device, or driving several GPUs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.config import ConfigError
from training.config.plan import Plan
from training.strategies.interface import Weights
from training.strategies.ranks import Alone, Ranks


class Single:
    """The plain step on one device; base class of the other strategies, and the reference for their results."""

    gathers: ClassVar[bool] = False
    saves_shards: ClassVar[bool] = False
    staged: ClassVar[bool] = False

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks | None = None) -> None:
        self.repeats = True
        self.unused: list[str] = []
        self.expects_unused = False
        self.plan = plan
        self.device = device
        self.ranks: Ranks = ranks or Alone()
        self.data_rank = self.ranks.rank
        self.data_ranks = self.ranks.size

    def prepare(self, model: nn.Module) -> nn.Module:
        return model.to(self.device)

    def shard_optimizer(self, optimizer: Optimizer) -> Optimizer:
        return optimizer

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)

    def run_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor], weight: float) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no stages")

    def evaluate_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor]) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no stages")

    def end_passes(self) -> None:
        """Do nothing: a pass never continues without memory."""

    def forget_passes(self) -> None:
        """Do nothing: only gradients remain."""

    def take_plan(self, plan: Plan) -> None:
        self.plan = plan

    def finish_gradients(self) -> None:
        """Do nothing: there is no other rank."""

    def adapt(self) -> tuple[nn.Module, list[str]] | None:
        return None

    def clip(self, model: nn.Module, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def after_step(self) -> None:
        """Do nothing: there is no other rank."""

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_full_state(self, model: nn.Module, optimizer: Optimizer, full: Weights) -> None:
        model.load_state_dict(full["model"])
        optimizer.load_state_dict(full["optimizer"])

    def sharded_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        return self.full_state(model, optimizer)

    def load_sharded_state(self, model: nn.Module, optimizer: Optimizer, shard: Weights) -> None:
        self.load_full_state(model, optimizer, shard)

    def measure_communication(self) -> float | None:
        return None

    def close(self) -> None:
        self.ranks.close()


class Dp(Single):
    """Splits each batch over the GPUs by torch's DataParallel, for scripts that cannot start ranks.

    Slower than "ddp": prefer that.

    Raises:
        ConfigError: there is no GPU.
    """

    def __init__(self, plan: Plan, device: torch.device, device_ids: Sequence[int] | None = None) -> None:
        if device.type != "cuda":
            raise ConfigError("strategy 'dp' needs GPUs, and there is none; use 'single', or 'ddp' on CPUs.")
        super().__init__(plan, device)
        self.device_ids = [*(device_ids or range(torch.cuda.device_count()))]

    def prepare(self, model: nn.Module) -> nn.Module:
        model.to(self.device)
        return nn.DataParallel(model, device_ids=self.device_ids) if len(self.device_ids) > 1 else model
