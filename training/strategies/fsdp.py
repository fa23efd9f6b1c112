"""Parameters, gradients and optimizer state sharded over the ranks, ZeRO stages 2 and 3, by torch's ``fully_shard``."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from training.config.plan import Plan
from training.memory.gate import Gate
from training.model.blocks import find_blocks
from training.strategies.gradients import clip_sharded
from training.strategies.ranks import Ranks
from training.strategies.replicas import make_alike
from training.strategies.sharded import Split


class Fsdp(Split):
    """ZeRO stage 3: gathers each block's parameters for its forward and again for its backward pass."""

    keeps_gathered: ClassVar[bool] = False

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks) -> None:
        super().__init__(plan, device, ranks)
        self.repeats = hasattr(FSDPModule, "reset_iter_state")  # since torch 2.13
        self._gate = Gate(ranks.least)
        self._mesh = init_device_mesh(device.type, (ranks.size,), mesh_dim_names=("dp",))

    def prepare(self, model: nn.Module) -> nn.Module:
        # A model that ends in a Linear returns a view.  The warning is about writing into it; no loss does that.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        make_alike(model, self.device)
        offload = OffloadPolicy()
        if self.plan.cpu_offload == "parameters":
            offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        for module in (*find_blocks(model), model):
            fully_shard(
                module, mesh=self._mesh, reshard_after_forward=not self.keeps_gathered, offload_policy=offload
            )
            if self.repeats:
                _exchange_through(self._gate, module)
        self._model = model
        return model

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        if isinstance(self._model, FSDPModule):
            # Gradients of several micro-batches stay whole; if memory is scarce, each is sharded at once.
            self._model.set_requires_gradient_sync(last or not exchange)
        return nullcontext() if exchange else self._gate.watched()

    def forget_passes(self) -> None:
        if not isinstance(self._model, FSDPModule):
            return
        self._model.zero_grad(set_to_none=True)  # of parameters that are still gathered
        self._model.reset_iter_state()

    def clip(self, model: nn.Module, max_norm: float) -> None:
        clip_sharded(model.parameters(), max_norm, self.device, self._mesh.get_group(), None)


def _exchange_through(gate: Gate, module: Any) -> None:
    module.set_custom_all_gather(_AllGather(gate))
    module.set_custom_reduce_scatter(_ReduceScatter(gate))


class _Exchange:
    """The default exchange of ``fully_shard``, after asking at the gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Exchange):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> distributed.Work | None:
        self._gate.ask()
        work: distributed.Work | None = distributed.all_gather_single(
            output_tensor, input_tensor, group=group, async_op=async_op
        )
        return work


class _ReduceScatter(_Exchange):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> distributed.Work | None:
        self._gate.ask()
        work: distributed.Work | None = distributed.reduce_scatter_single(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )
        return work


class Zero2(Fsdp):
    """ZeRO stage 2: gathers parameters once per micro-batch, and keeps them for its backward pass."""

    keeps_gathered = True
