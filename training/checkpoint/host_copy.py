"""A copy of a training state in host memory, fast because its buffers are reused."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from training.checkpoint.store import CheckpointError

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_Key = tuple[str, torch.dtype, torch.Size, tuple[int, ...]]


def is_sharded(state: Any) -> bool:
    """Return whether the state contains a DTensor, a tensor split over ranks."""
    if isinstance(state, dict):
        return any(is_sharded(value) for value in state.values())
    if isinstance(state, list | tuple):
        return any(is_sharded(value) for value in state)
    return isinstance(state, Tensor) and hasattr(
        state, "placements"
    )  # not isinstance: importing DTensor takes 0.1 s


class HostCopy:
    """Owns one host buffer for each tensor of a state, which every ``take`` refills.

    The copy contains tensors, numbers, strings, and lists, tuples and dicts of them: what
    ``torch.load(weights_only=True)`` reads.  Tensors that share memory share their copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[_Key, Tensor] = {}
        self._used: dict[_Key, Tensor] = {}
        self._devices: set[torch.device] = set()
        self._shared: dict[tuple[int, torch.Size, tuple[int, ...], torch.dtype], Tensor] = {}

    def allocate(self, state: Any) -> None:
        """Allocate the buffers before they are needed; reads only shapes, so any thread may call this."""
        self._walk(state, "state", fill=False)

    def take(self, state: Any) -> Any:
        """Copy ``state``; the result is valid until the next call.

        Waits for the accelerator's queued work, so that the values belong to one step.

        Raises:
            CheckpointError: the state contains something that could not be loaded safely; the
                message says where.
        """
        copy = self._walk(state, "state", fill=True)
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        return copy

    def _walk(self, state: Any, path: str, *, fill: bool) -> Any:
        self._used, self._shared = {}, {}
        self._devices.clear()
        copy = self._copy(state, path, fill)
        self._buffers, self._used, self._shared = self._used, {}, {}
        return copy

    def _copy(self, value: Any, path: str, fill: bool) -> Any:
        if isinstance(value, Tensor):
            if is_sharded(value):
                return self._copy_shard(value.detach(), path, fill)
            return self._copy_tensor(value.detach(), path, fill)
        if type(value) in _PLAIN:
            return value
        if isinstance(value, OrderedDict):  # a module's state has its versions in an attribute
            ordered = OrderedDict(
                (key, self._copy(item, f"{path}[{key!r}]", fill)) for key, item in value.items()
            )
            ordered.__dict__.update(value.__dict__)
            return ordered
        if isinstance(value, dict):
            return {key: self._copy(item, f"{path}[{key!r}]", fill) for key, item in value.items()}
        if isinstance(value, list | tuple):
            kind = list if isinstance(value, list) else tuple
            return kind(self._copy(item, f"{path}[{number}]", fill) for number, item in enumerate(value))
        if isinstance(value, float | int):  # such as numpy.float64
            return float(value) if isinstance(value, float) else int(value)
        raise CheckpointError(
            f"{path} is a {type(value).__name__}; a checkpoint holds tensors, numbers, strings, "
            "and lists, tuples and dicts of them. Convert it, or save it elsewhere."
        )

    def _copy_shard(self, tensor: Any, path: str, fill: bool) -> Any:
        """Copy this rank's part of a DTensor, as a DTensor with the same split."""
        local = self._copy_tensor(tensor.to_local(), path, fill)
        return type(tensor).from_local(
            local,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    def _copy_tensor(self, tensor: Tensor, path: str, fill: bool) -> Tensor:
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and memory in self._shared:
            return self._shared[memory]
        key = (path, tensor.dtype, tensor.shape, tensor.stride())
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            if not fill:
                buffer.zero_()  # touches the pages: the kernel provides them only then, which is the slow part
        if fill:
            buffer.copy_(tensor, non_blocking=True)
            if tensor.is_cuda:
                self._devices.add(tensor.device)
        self._used[key] = self._shared[memory] = buffer
        return buffer
