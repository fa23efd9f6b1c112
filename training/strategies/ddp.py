"""Replicas with averaged gradients, by torch's DistributedDataParallel; ZeRO stage 1 on top of it."""

from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from training.config import ConfigError, TrainConfig
from training.config.plan import Plan
from training.config.words import say_names
from training.strategies.exchange import LocalSgd, register_hook
from training.strategies.gradients import exchange_with_empty_pass, find_unreduced, give_zeros
from training.strategies.interface import Weights
from training.strategies.ranks import Ranks
from training.strategies.replicas import copy_from_first
from training.strategies.single import Single


class Ddp(Single):
    """The whole model on every rank; supports ``comm_hook``, ``local_sgd_steps`` and ``sync_batchnorm``."""

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks, config: TrainConfig) -> None:
        super().__init__(plan, device, ranks)
        self.config = config
        # DDP fails if a static graph delays gradients (github.com/pytorch/pytorch/issues/143580).  So a static
        # graph is declared only if every pass exchanges, and then no step is retried.
        self._static = (
            config.static_graph and plan.gradient_accumulation_steps == 1 and config.local_sgd_steps is None
        )
        self.repeats = not self._static
        self._finds_unused = config.find_unused_parameters or plan.find_unused_parameters
        self._checked = False  # whether all ranks have compared the first step
        self._delayed = False  # whether the exchange of the last micro-batch was skipped
        self._model: DistributedDataParallel | None = None
        self._local_sgd: LocalSgd | None = None

    def prepare(self, model: nn.Module) -> nn.Module:
        config, on_gpu = self.config, self.device.type == "cuda"
        model.to(self.device)
        if config.sync_batchnorm:
            if not on_gpu:
                raise ConfigError("sync_batchnorm needs GPUs: torch's SyncBatchNorm has no CPU kernel.")
            # In place, so that the user's own model is trained.
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
            find_unused_parameters=self._finds_unused,
            **_buffers(config.broadcast_buffers),
            static_graph=self._static,
            bucket_cap_mb=config.bucket_cap_mb,
        )
        register_hook(self._model, config.comm_hook, self.device)
        return self._model

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        alone = self._local_sgd is not None
        self._delayed = not exchange and not alone
        if self._model is None or (last and exchange and not alone):
            return nullcontext()
        if not exchange:  # buffers are not exchanged in the pass either
            self._model.require_forward_param_sync = False
        return cast(AbstractContextManager[None], self._model.no_sync())

    def finish_gradients(self) -> None:
        if self._model is None:
            return
        if not self._delayed:
            if not (self._finds_unused or self._static or self._local_sgd):
                self._end_exchange(self._model)
            return
        exchange_with_empty_pass(self._model, self.device, some=self._finds_unused)
        if self.config.broadcast_buffers:
            copy_from_first([*self._model.buffers()], self.device)
        self._model.require_forward_param_sync = False

    def _end_exchange(self, model: DistributedDataParallel) -> None:
        """Send zeros for gradients that this rank's step did not produce, so that no rank waits for them.

        After the first step, ranks compare: parameters that none of them used stay without a gradient, so
        that the optimizer leaves them unchanged.
        """
        missing = find_unreduced(model)
        self.unused += [name for name in missing if name not in self.unused]
        try:
            give_zeros(model, [*missing.values()])
        except RuntimeError as error:
            raise ConfigError(
                f"This step gave no gradient for {say_names(self.unused) or 'some parameters'}. Set "
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
        if not self.expects_unused or self._finds_unused or self._model is None:
            return None
        names = {name: None for of_rank in self.ranks.gather(self.unused) for name in of_rank}
        self._finds_unused = True
        return self._wrap(self._model.module), [*names]

    def clip(self, model: nn.Module, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # the gradients are equal on all ranks

    def after_step(self) -> None:
        if self._local_sgd is not None:
            self._local_sgd.after_step()

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        if self._local_sgd is not None:  # the average of the ranks is saved
            self._local_sgd.average()
        return super().full_state(model, optimizer)

    def measure_communication(self) -> float | None:
        """Read DDP's own timing, which covers one step in a hundred."""
        if self._model is None or self._local_sgd is not None:
            return None
        # Private, but the only clock of the overlapped exchange; absent fields mean: not measured yet.
        wrapper: Any = self._model
        timing = wrapper._get_ddp_logging_data()
        exchange_ns = timing.get("backward_comm_time", 0)
        step_ns = timing.get("backward_comm_time_end", 0) - timing.get("forward_compute_time_start", 0)
        return min(exchange_ns / step_ns, 1.0) if exchange_ns > 0 and step_ns > 0 else None

    def close(self) -> None:
        self._model = None
        super().close()


def _buffers(broadcast: bool) -> dict[str, Any]:
    """Return the option under its name in this version of torch; empty for the default."""
    if broadcast:
        return {}
    options = signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers": False}


class Zero1(Ddp):
    """As DDP, but each rank keeps the optimizer state of its share of the parameters: ZeRO stage 1."""

    gathers = True

    def shard_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Return a sharded optimizer of the same class, groups and settings; ``optimizer`` must be new."""
        from torch.distributed.optim import ZeroRedundancyOptimizer

        accepted = signature(type(optimizer).__init__).parameters  # AdamW has a default that is no argument
        settings = {name: value for name, value in optimizer.defaults.items() if name in accepted}
        groups = [{**group} for group in optimizer.param_groups]
        return ZeroRedundancyOptimizer(groups, type(optimizer), **settings)

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        sharded: Any = optimizer
        sharded.consolidate_state_dict(to=0)
        if self.ranks.rank != 0:
            return {}
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
