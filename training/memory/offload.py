"""Offload to host memory: saved activations, or the optimizer and its state."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict


def offload_activations(device: torch.device) -> AbstractContextManager[Any]:
    """Keep what a forward pass saves for the backward pass in host memory."""
    return torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda")


class OffloadedOptimizer(Optimizer):
    """Steps on the host, on copies of the parameters, and copies the result back.

    ``optimizer`` must be new; its state lives on the host.  ``optimizer`` itself would
    give the same results in the same arithmetic.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        super().__init__(groups, dict(optimizer.defaults))
        self._inner = optimizer
        self._pairs: list[
            tuple[Tensor, nn.Parameter]
        ] = []  # parameters on the device, their copies on the host
        for group in optimizer.param_groups:
            copies = [_copy_to_host(parameter) for parameter in group["params"]]
            self._pairs += zip(group["params"], copies, strict=True)
            group["params"] = copies

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it for closures
        """Step; waits for the gradients, but not for the copies back."""
        loss = closure() if closure is not None else None
        for own, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update({name: value for name, value in own.items() if name != "params"})
        for parameter, copy in self._pairs:
            if parameter.grad is None:
                copy.grad = None
                continue
            if copy.grad is None:
                copy.grad = torch.empty_like(copy, pin_memory=parameter.is_cuda)
            copy.grad.copy_(parameter.grad, non_blocking=True)
        _wait_for({parameter.device for parameter, _ in self._pairs})
        self._inner.step()
        for parameter, copy in self._pairs:
            parameter.copy_(copy, non_blocking=True)
        return loss

    def state_dict(self) -> StateDict:
        """Return the state as the optimizer without offload would."""
        state = super().state_dict()
        return {**self._inner.state_dict(), "param_groups": state["param_groups"]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state; call this after the model's own ``load_state_dict``, because it copies the parameters."""
        super().load_state_dict({**state_dict, "state": {}})
        self._inner.load_state_dict(state_dict)
        for parameter, copy in self._pairs:
            copy.copy_(parameter)


def _copy_to_host(parameter: Tensor) -> nn.Parameter:
    host = torch.empty_like(parameter, device="cpu", pin_memory=parameter.is_cuda)
    host.copy_(parameter.detach())
    return nn.Parameter(host, requires_grad=parameter.requires_grad)


def _wait_for(devices: set[torch.device]) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
