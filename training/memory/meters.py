"""Memory meters: how much a piece of a training takes, and how much there is."""

import os
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRETEND_VARIABLE = "BERTH_PRETEND_MEMORY_BYTES"
PRETEND_RANK_VARIABLE = "BERTH_PRETEND_MEMORY_RANK"


class Meter(Protocol):
    """Counts the bytes of tensors on one device."""

    @property
    def limit_bytes(self) -> int:
        """The most this process may hold."""

    @property
    def live_bytes(self) -> int:
        """What this process holds now."""

    @property
    def peak_bytes(self) -> int:
        """The most this process held since ``start``."""

    trace: list[int]
    """Bytes held after each operation inside ``measuring``, since ``start``."""

    def start(self) -> None: ...

    def measuring(self) -> AbstractContextManager[Any]:
        """Count the tensors created inside."""


class GpuMeter:
    """Reads the allocator's counters; memory of other processes is not available to us."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.trace: list[int] = []

    @property
    def limit_bytes(self) -> int:
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        return free_bytes + torch.cuda.memory_reserved(self._device)

    @property
    def live_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    @property
    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def start(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self.trace = []

    def measuring(self) -> AbstractContextManager[Any]:
        return _Tracer(self)


class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    def __init__(self, meter: GpuMeter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._meter.trace.append(self._meter.live_bytes)
        return result


class HostMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as above
    """Counts the tensors created while it is active, and fails like a GPU beyond ``limit_bytes``.

    The CPU allocator has neither counters nor a limit.  The limit can also simulate a small GPU: see
    ``pretended_memory``.
    """

    def __init__(self, limit_bytes: int | None = None, held: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.limit_bytes = available_bytes() if limit_bytes is None else limit_bytes
        self.live_bytes = self.peak_bytes = 0
        self.trace: list[int] = []
        self._seen: set[int] = set()
        self.count(held)

    def start(self) -> None:
        self.peak_bytes, self.trace = self.live_bytes, []

    def measuring(self) -> AbstractContextManager[Any]:
        return self

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that existed before."""
        for tensor in tensors:
            self._count(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        self.trace.append(self.live_bytes)
        if self.live_bytes > self.limit_bytes:
            needed_bytes = self.live_bytes
            del result
            raise torch.OutOfMemoryError(
                f"CUDA out of memory on a pretended device: {needed_bytes:,} bytes are needed and {self.limit_bytes:,} exist"
            )
        return result

    def _count(self, tensor: Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # tensors without memory of their own, such as sparse ones
            return
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live_bytes -= size


def make_meter(device: torch.device, held: Iterable[Tensor] = ()) -> Meter:
    """Make the meter of a device; ``held`` are existing tensors, which the host's meter cannot see itself."""
    return GpuMeter(device) if device.type == "cuda" else HostMeter(pretended_bytes(), held)


def available_bytes() -> int:
    """Return the host memory available now without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 40


def pretended_bytes() -> int | None:
    """Return the memory of the device that this rank's CPU simulates; None if it simulates none."""
    size = os.environ.get(PRETEND_VARIABLE)
    rank = os.environ.get(PRETEND_RANK_VARIABLE)
    if size is None or (rank is not None and rank != os.environ.get("RANK", "0")):
        return None
    return int(size)


def pretended_memory(held: Iterable[Tensor] = ()) -> AbstractContextManager[Any]:
    """Limit allocations of a training on the CPU to the memory of the pretended device, if there is one."""
    size = pretended_bytes()
    return nullcontext() if size is None else HostMeter(size, held)
