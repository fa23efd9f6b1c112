"""Tensor parallelism by torch's ``parallelize_module``: layers split over ranks, replicated over ``dp``."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from training.config.plan import Plan
from training.memory.gate import AskBeforeAll, Gate
from training.model.layer_splits import find_layers
from training.strategies.gradients import average_gradients, clip_sharded
from training.strategies.ranks import Ranks
from training.strategies.replicas import make_alike
from training.strategies.sharded import Split


class TensorParallel(Split):
    """``tp`` neighbours see the same samples; ``dp`` such groups average their gradients."""

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks) -> None:
        super().__init__(plan, device, ranks)
        self.repeats = True
        self._gate = Gate(ranks.least)
        mesh = init_device_mesh(device.type, (plan.dp, plan.tp), mesh_dim_names=("dp", "tp"))
        self._dp, self._tp = mesh["dp"], mesh["tp"]
        self.data_rank, self.data_ranks = self._dp.get_local_rank(), plan.dp

    def prepare(self, model: nn.Module) -> nn.Module:
        make_alike(model, self.device)
        split_layers(model, self._tp)
        model.to(self.device)
        self._model = model
        return model

    def micro_batch(self, *, last: bool, exchange: bool = True) -> AbstractContextManager[None]:
        return nullcontext() if exchange else self._ask_before_all()

    @contextmanager
    def _ask_before_all(self) -> Iterator[None]:
        with self._gate.watched(), AskBeforeAll(self._gate):
            yield

    def finish_gradients(self) -> None:
        if self.plan.dp > 1 and self._model is not None:
            average_gradients(self._model.parameters(), self._dp.get_group())

    def clip(self, model: nn.Module, max_norm: float) -> None:
        clip_sharded(model.parameters(), max_norm, self.device, self._tp.get_group(), None)


def split_layers(
    model: nn.Module, mesh: DeviceMesh, holds: Callable[[str], bool] = lambda name: True
) -> None:
    """Replace the parameters of paired layers that ``holds`` accepts by DTensors over ``mesh``, in place."""
    layers = find_layers(model, mesh.size())
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel() if split == "columns" else RowwiseParallel()
        for name, split in layers.held(holds).items()
    }
    if styles:
        parallelize_module(model, mesh, styles)
    for module, name in layers.heads:  # the model reshapes to this number of heads; this rank has its share
        setattr(module, name, getattr(module, name) // mesh.size())
    # The fused inference kernels of nn.Transformer do not support DTensors.
    torch.backends.mha.set_fastpath_enabled(False)
