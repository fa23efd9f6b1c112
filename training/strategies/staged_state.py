"""The state of a model in a pipeline, where each rank holds some of the blocks.

The user's model keeps all its Parameter objects on every rank, without memory for other ranks' blocks.  So
the optimizer numbers its parameters as on a single rank, and the whole state is the union of all ranks'
parts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from training.strategies import sharded
from training.strategies.interface import Weights

Holds = Callable[[str], bool]


def free_others(model: nn.Module, holds: Holds, shapes: Mapping[str, torch.Size]) -> None:
    """Free the parameters that other ranks hold, and allocate those that this rank newly holds."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):  # split over tensor ranks, so this rank has always held it
            continue
        shape = shapes[name] if holds(name) else torch.Size([0])
        if parameter.shape != shape:
            parameter.data = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)


def gather_full(model: nn.Module, optimizer: Optimizer, holds: Holds, group: ProcessGroup) -> Weights:
    """Gather whole tensors in host memory, on every rank of the pipeline ``group``; all its ranks must call this."""
    own = sharded.gather_full(model, optimizer, holds)
    parts: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(parts, own, group=group)
    order = list(model.state_dict())
    tensors = {name: value for part in parts for name, value in part["model"].items()}
    state = {number: values for part in parts for number, values in part["optimizer"]["state"].items()}
    return {
        "model": {name: tensors[name] for name in order},
        "optimizer": {**own["optimizer"], "state": dict(sorted(state.items()))},
    }


def scatter_full(model: nn.Module, optimizer: Optimizer, full: Weights, holds: Holds) -> None:
    """Load this rank's blocks from a whole state."""
    own = model.state_dict()
    if missing := sorted(set(own) ^ set(full["model"])):
        raise RuntimeError(f"the state is of another model; these differ: {', '.join(missing[:10])}")
    sharded.load_model(model, {**own, **{name: full["model"][name] for name in own if holds(name)}})
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    numbered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held = {
        number: values
        for number, values in full["optimizer"]["state"].items()
        if holds(names[id(numbered[number])])
    }
    optimizer.state.clear()
    sharded.load_optimizer(optimizer, {**full["optimizer"], "state": held})
