"""The state of a model whose parameters are DTensors, in the form that one rank alone would save.

An optimizer's state is keyed by the number of the parameter in the order of its groups, which is
the same for every strategy, because all build the groups from ``named_parameters`` in one order.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


def gather_full(
    model: nn.Module, optimizer: Optimizer, holds: Callable[[str], bool] = lambda name: True
) -> dict[str, Any]:
    """Whole tensors on the host of what ``holds`` names, on every rank; all ranks call it."""
    return {
        "model": {name: _whole(value) for name, value in model.state_dict().items() if holds(name)},
        "optimizer": _map_tensors(optimizer.state_dict(), _whole),
    }


def scatter_full(model: nn.Module, optimizer: Optimizer, full: dict[str, Any]) -> None:
    """Take this rank's shards of whole tensors; all ranks call it."""
    load_model(model, full["model"])
    load_optimizer(optimizer, full["optimizer"])


def load_optimizer(optimizer: Optimizer, whole: dict[str, Any]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {name: _as_shard(value, parameters[number]) for name, value in values.items()}
        for number, values in whole["state"].items()
    }
    optimizer.load_state_dict({**whole, "state": state})


@torch.no_grad()
def load_model(model: nn.Module, whole: dict[str, Any]) -> None:
    own = model.state_dict()
    shards = {name: _as_shard(value, own[name]) if name in own else value for name, value in whole.items()}
    model.load_state_dict(shards)


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        # An offloaded parameter lies on the host; its mesh speaks between GPUs.
        return cast(DTensor, value.to(value.device_mesh.device_type)).full_tensor().detach().cpu()
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _as_shard(value: Any, like: Tensor) -> Any:
    """The shard of ``value`` that this rank holds of ``like``; numbers and odd shapes stay whole."""
    if not isinstance(value, Tensor) or not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    device = like.to_local().device
    mesh_device = like.device_mesh.device_type
    shard = distribute_tensor(value.to(mesh_device), like.device_mesh, like.placements, src_data_rank=None)
    if device.type == mesh_device:
        return shard
    # Offloaded parameters live on the host, though their mesh is of GPUs.
    return DTensor.from_local(shard.to_local().to(device), like.device_mesh, like.placements, run_check=False)


def _map_tensors(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_tensors(item, change) for item in value]
    return cast(Any, value)
