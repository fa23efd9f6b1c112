"""Pipeline stages, cut between the blocks of a model without changing its code.

A Sequential is cut between its children.  In other models the trunk is cut:

- the first stage runs ``forward`` and leaves it after its last block;
- middle stages call their blocks;
- the last stage runs ``forward`` too, but computes everything before its blocks on the meta device, at no
  cost, and then replaces the result by the output of the stage before.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn

from training.config import ConfigError
from training.model.blocks import Chain
from training.strategies.shortage import Shortage


def even_bounds(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Choose the first blocks of the second and later stages, so that the costliest stage is cheapest.

    Raises:
        ConfigError: there are fewer blocks with a cost than stages.
    """
    count = len(costs)
    if sum(cost > 0 for cost in costs) < stages:
        raise ConfigError(
            f"The model has {sum(cost > 0 for cost in costs)} blocks with parameters, the pipeline {stages} "
            "stages; use fewer ranks for the pipeline."
        )
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # best[end]: cost of the costliest stage so far, for the first ``end`` blocks, and the bounds.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(stages):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (worst, bounds) in best.items():
            for end in range(start + 1, count + 1):
                if sums[end] == sums[start]:  # nothing to train in this stage
                    continue
                candidate = max(worst, sums[end] - sums[start]), (*bounds, start)
                if end not in following or candidate < following[end]:
                    following[end] = candidate
        best = following
    return best[count][1][1:]


class Stage(nn.Module):
    """The blocks ``[start, end)`` of a chain; shares their parameters with the model."""

    def __init__(
        self,
        chain: Chain,
        start: int,
        end: int,
        autocast: Callable[[], AbstractContextManager[Any]],
        shortage: Shortage | None = None,
    ) -> None:
        """Create the stage; with ``shortage``, a part that runs out of memory is recorded there and becomes zeros."""
        super().__init__()
        self._shortage = shortage
        self._output_shape: torch.Size | None = None  # of the newest computed output
        self._chain, self._start, self._end = chain, start, end
        self._autocast = autocast
        self.measures = False  # measuring synchronises the GPU
        self.busy_s, self.forwards = 0.0, 0
        self.first, self.last = start == 0, end == len(chain.blocks)
        self._inject = _Inject()
        self.model = _copy_structure(chain.model, set(chain.blocks))
        trunk = self.model.get_submodule(chain.trunk_name)
        for number, name in enumerate(dict(chain.model.get_submodule(chain.trunk_name).named_children())):
            if not start <= number < end:
                trunk._modules[name] = self._stand_in(number)
        _leave_on_meta(self.model, self.holds, chain.shapes)

    def describe_ends(self) -> tuple[Tensor, Tensor]:
        """Return input and output as meta tensors."""
        first, last = self._chain.between[self._start], self._chain.between[self._end]
        return first.requires_grad_(self._start > 0), last.requires_grad_()

    def holds(self, name: str) -> bool:
        """Return whether the parameter or buffer ``name`` belongs to this stage."""
        return self._start <= self._chain.belongs_to(name) < self._end

    def forward(self, inputs: Tensor) -> Tensor:
        if self._shortage is None:
            return self._compute(inputs)
        if not self._shortage.noticed:
            try:
                output = self._compute(inputs)
                self._output_shape = output.shape
                return output
            except Exception as error:  # noqa: BLE001 -- ``note`` raises any other error
                self._shortage.note(error)
        self._shortage.free()
        _, like = self.describe_ends()  # except for the last stage, which continues after its blocks
        shape = (like.shape if self._output_shape is None else self._output_shape)[1:]
        zeros = torch.zeros(len(inputs), *shape, dtype=like.dtype, device=inputs.device, requires_grad=True)
        return zeros + inputs.sum() * 0 if inputs.requires_grad else zeros

    def _compute(self, inputs: Tensor) -> Tensor:
        start_s = time.perf_counter()
        with self._autocast():
            output = self._run(inputs)
        if output.device.type == "cuda" and self.measures:
            torch.cuda.synchronize(output.device)
        if self.measures:
            self.busy_s += time.perf_counter() - start_s
            self.forwards += 1
        return output

    def _run(self, inputs: Tensor) -> Tensor:
        if not self._chain.trunk_name or (self.first and self.last):
            return cast(Tensor, self.model(inputs))
        if self.first:
            try:
                self.model(inputs)
            except _LeaveError as reached:
                return reached.output
            raise AssertionError("the model did not call the block after the first stage")
        if self.last:
            self._inject.received = inputs
            return cast(Tensor, self.model(self._chain.between[0]))
        for number in range(self._start, self._end):
            args, kwargs = self._chain.extras[number]
            inputs = self._chain.blocks[number](inputs, *args, **kwargs)
        return inputs

    def _stand_in(self, number: int) -> nn.Module:
        if not self._chain.trunk_name:
            return nn.Identity()
        if number == self._end:
            return _Leave()
        return self._inject if number == self._start - 1 else _Pass()


class _Pass(nn.Module):
    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return inputs


class _Inject(nn.Module):
    """Returns the output of the stage before, ignoring its input."""

    received: Tensor

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.received


class _LeaveError(Exception):
    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


class _Leave(nn.Module):
    """Ends ``forward`` where the next stage continues."""

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        raise _LeaveError(inputs)


def _copy_structure(module: nn.Module, shared: set[nn.Module]) -> nn.Module:
    """Copy the tree of modules; share parameters and the modules in ``shared``."""
    if module in shared:
        return module
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    twin._modules = {
        name: None if child is None else _copy_structure(child, shared)
        for name, child in module._modules.items()
    }
    return twin


def _leave_on_meta(model: nn.Module, holds: Callable[[str], bool], shapes: Mapping[str, torch.Size]) -> None:
    """Replace parameters and buffers of other stages by meta tensors."""
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None and not holds(f"{dot}{name}"):
                on_meta = torch.empty(shapes[f"{dot}{name}"], dtype=parameter.dtype, device="meta")
                module._parameters[name] = nn.Parameter(on_meta, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and not holds(f"{dot}{name}"):
                module._buffers[name] = torch.empty_like(buffer, device="meta")
