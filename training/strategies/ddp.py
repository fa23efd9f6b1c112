"""The whole model on every rank, gradients averaged: torch's DistributedDataParallel."""

from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from training.comm import LocalSgd, register_hook
from training.config import ConfigError, TrainConfig
from training.plan.table import say_names
from training.plan.types import Plan
from training.strategies.gradients import exchange_with_empty_pass, find_unreduced, give_zeros
from training.strategies.ranks import Ranks
from training.strategies.replicas import copy_from_first
from training.strategies.single import Single


class Ddp(Single):
    """Also carries out ``comm_hook``, ``local_sgd_steps`` and ``sync_batchnorm``."""

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks, config: TrainConfig) -> None:
        super().__init__(plan, device, ranks)
        self.config = config
        # DDP fails where a static graph keeps gradients back (github.com/pytorch/pytorch/issues/143580), so
        # it is told of one only where each pass exchanges, and no step is repeated then.
        self._static = (
            config.static_graph and plan.gradient_accumulation_steps == 1 and config.local_sgd_steps is None
        )
        self.repeats = not self._static
        self._looks = config.find_unused_parameters or plan.find_unused_parameters
        self._checked = False  # whether the first step was looked at by all ranks
        self._owed = False  # whether the gradients of the last micro-batch were kept back
        self._model: DistributedDataParallel | None = None
        self._local_sgd: LocalSgd | None = None

    def prepare(self, model: nn.Module) -> nn.Module:
        config, on_gpu = self.config, self.device.type == "cuda"
        model.to(self.device)
        if config.sync_batchnorm:
            if not on_gpu:
                raise ConfigError("sync_batchnorm needs GPUs: torch's SyncBatchNorm has no CPU kernel.")
            # In place, so that the user's model is the one that is trained.
            convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
            convert(model)
        if config.local_sgd_steps is not None:
            self._local_sgd = LocalSgd(model, config.local_sgd_steps)
        return self._wrap(model)

    def _wrap(self, model: nn.Module) -> DistributedDataParallel:
        config = self.config
        self._model = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            find_unused_parameters=self._looks,
            **_buffers(config.broadcast_buffers),
            static_graph=self._static,
            bucket_cap_mb=config.bucket_cap_mb,
        )
        register_hook(self._model, config.comm_hook, self.device)
        return self._model

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        alone = self._local_sgd is not None
        self._owed = not exchange and not alone
        if self._model is None or (last and exchange and not alone):
            return nullcontext()
        if not exchange:  # buffers are not exchanged in the pass either
            self._model.require_forward_param_sync = False
        return cast(AbstractContextManager[None], self._model.no_sync())

    def finish_gradients(self) -> None:
        if self._model is None:
            return
        if not self._owed:
            if not (self._looks or self._static or self._local_sgd):
                self._end_exchange(self._model)
            return
        exchange_with_empty_pass(self._model, self.device, some=self._looks)
        if self.config.broadcast_buffers:
            copy_from_first([*self._model.buffers()], self.device)
        self._model.require_forward_param_sync = False

    def _end_exchange(self, model: DistributedDataParallel) -> None:
        """Let no rank wait for gradients that this one's step did not give: they are zero.

        In the first step all ranks tell each other which, so that what none of them used stays without a
        gradient, and an optimizer leaves it alone.
        """
        missing = find_unreduced(model)
        self.unused += [name for name in missing if name not in self.unused]
        try:
            give_zeros(model, [*missing.values()])
        except RuntimeError as error:
            raise ConfigError(
                f"No gradient came in this step for {say_names(self.unused) or 'some parameters'}. Set "
                "find_unused_parameters=True, or remove what the model does not use."
            ) from error
        if self._checked:
            return
        self._checked = True
        of_ranks = self.ranks.gather([*missing])
        self.expects_unused = any(of_ranks)
        for name in set.intersection(*map(set, of_ranks)):
            missing[name].grad = None

    def adapt(self) -> tuple[nn.Module, list[str]] | None:
        if not self.expects_unused or self._looks or self._model is None:
            return None
        names = {name: None for of_rank in self.ranks.gather(self.unused) for name in of_rank}
        self._looks = True
        return self._wrap(self._model.module), [*names]

    def clip(self, model: nn.Module, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # the gradients are equal on all ranks

    def after_step(self) -> None:
        if self._local_sgd is not None:
            self._local_sgd.after_step()

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        if self._local_sgd is not None:  # what is saved is what the ranks would agree on
            self._local_sgd.average()
        return super().full_state(model, optimizer)

    def measure_communication(self) -> float | None:
        """From the clocks that DDP keeps itself, of one step in a hundred."""
        if self._model is None or self._local_sgd is not None:
            return None
        # Private, but the only clock of the overlapped exchange; absent fields mean: not measured yet.
        wrapper: Any = self._model
        found = wrapper._get_ddp_logging_data()
        exchange_ns = found.get("backward_comm_time", 0)
        step_ns = found.get("backward_comm_time_end", 0) - found.get("forward_compute_time_start", 0)
        return min(exchange_ns / step_ns, 1.0) if exchange_ns > 0 and step_ns > 0 else None

    def close(self) -> None:
        self._model = None
        super().close()


def _buffers(broadcast: bool) -> dict[str, Any]:
    """The option under the name that this torch has for it; nothing where it is the default."""
    if broadcast:
        return {}
    known = signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}
