"""The whole model on every rank, gradients averaged: torch's DistributedDataParallel."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


class Ddp:
    """Starts the process group unless the script has, and ends the one it started."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._owns_group = not distributed.is_initialized()
        if self._owns_group:
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        self.rank = distributed.get_rank()
        self.world_size = distributed.get_world_size()
        # What ranks agree on travels beside the gradients, on the host: it must not wait for the GPU.
        self._side = distributed.new_group(backend="gloo")
        self._wishes: tuple[distributed.Work, Tensor] | None = None
        self._model: DistributedDataParallel | None = None

    def prepare(self, model: nn.Module) -> nn.Module:
        on_gpu = self.device.type == "cuda"
        self._model = DistributedDataParallel(
            model, device_ids=[self.device] if on_gpu else None, gradient_as_bucket_view=True
        )
        return self._model

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        if last or self._model is None:
            return nullcontext()
        return cast(AbstractContextManager[None], self._model.no_sync())

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)

    def clip(self, model: nn.Module, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # the gradients are equal on all ranks

    def agree(self, *, save: bool, stop: bool) -> tuple[bool, bool]:
        agreed = self._finish_agreement()
        wishes = torch.tensor([save, stop], dtype=torch.uint8)
        work = distributed.all_reduce(wishes, distributed.ReduceOp.MAX, group=self._side, async_op=True)
        self._wishes = (cast(distributed.Work, work), wishes)
        return agreed

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        distributed.all_gather_object(values, value, group=self._side)
        return values

    def sum(self, numbers: Tensor) -> Tensor:
        on_host = numbers.cpu()
        distributed.all_reduce(on_host, group=self._side)
        return on_host

    def close(self) -> None:
        self._finish_agreement()
        self._model = None
        if self._owns_group:
            distributed.destroy_process_group()

    def _finish_agreement(self) -> tuple[bool, bool]:
        if self._wishes is None:
            return False, False
        work, wishes = self._wishes
        work.wait()
        self._wishes = None
        save, stop = wishes.tolist()
        return bool(save), bool(stop)
