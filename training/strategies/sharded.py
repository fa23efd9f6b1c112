"""Models whose parameters are DTensors: their state, in the form that a single rank would save.

Optimizer state is keyed by the number of the parameter in the order of the groups.  This order is the same
for every strategy, because all build the groups from ``named_parameters``.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from training.config.plan import Plan
from training.strategies.interface import Weights
from training.strategies.ranks import Ranks
from training.strategies.single import Single


def gather_full(
    model: nn.Module, optimizer: Optimizer, holds: Callable[[str], bool] = lambda name: True
) -> Weights:
    """Gather whole tensors of the names that ``holds`` accepts, in host memory of every rank; all ranks must call this."""
    return {
        "model": {name: _whole(value) for name, value in model.state_dict().items() if holds(name)},
        "optimizer": _map_tensors(optimizer.state_dict(), _whole),
    }


def scatter_full(model: nn.Module, optimizer: Optimizer, full: Weights) -> None:
    """Load this rank's shards of whole tensors; all ranks must call this."""
    load_model(model, full["model"])
    load_optimizer(optimizer, full["optimizer"])


def load_optimizer(optimizer: Optimizer, whole: Mapping[str, Any]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {name: _as_shard(value, parameters[number]) for name, value in values.items()}
        for number, values in whole["state"].items()
    }
    optimizer.load_state_dict({**whole, "state": state})


@torch.no_grad()
def load_model(model: nn.Module, whole: Mapping[str, Any]) -> None:
    own = model.state_dict()
    shards = {name: _as_shard(value, own[name]) if name in own else value for name, value in whole.items()}
    model.load_state_dict(shards)


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        # An offloaded parameter is on the host, but its mesh connects GPUs.
        return cast(DTensor, value.to(value.device_mesh.device_type)).full_tensor().detach().cpu()
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _as_shard(value: Any, like: Tensor) -> Any:
    """Return this rank's shard of ``value``, split like ``like``; numbers and other shapes stay whole."""
    if not isinstance(value, Tensor) or not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    device = like.to_local().device
    mesh_device = like.device_mesh.device_type
    shard = distribute_tensor(value.to(mesh_device), like.device_mesh, like.placements, src_data_rank=None)
    if device.type == mesh_device:
        return shard
    # Offloaded parameters are on the host, although their mesh connects GPUs.
    return DTensor.from_local(shard.to_local().to(device), like.device_mesh, like.placements, run_check=False)


def _map_tensors(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_tensors(item, change) for item in value]
    return cast(Any, value)


class Split(Single):
    """Base of strategies whose parameters are DTensors: each rank holds its part, and saves it."""

    gathers = True
    saves_shards = True

    def __init__(self, plan: Plan, device: torch.device, ranks: Ranks) -> None:
        super().__init__(plan, device, ranks)
        self.repeats = False  # ranks exchange parameters or activations in each pass
        self._model: nn.Module | None = None  # set by ``prepare``

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        return gather_full(model, optimizer)

    def load_full_state(self, model: nn.Module, optimizer: Optimizer, full: Weights) -> None:
        scatter_full(model, optimizer, full)

    def sharded_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_sharded_state(self, model: nn.Module, optimizer: Optimizer, shard: Weights) -> None:
        model.load_state_dict(shard["model"])
        optimizer.load_state_dict(shard["optimizer"])

    def close(self) -> None:
        self._model = None
        super().close()
