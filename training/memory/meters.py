"""How much memory a piece of a training takes, and how much there is."""

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
        """What this process may hold altogether."""

    @property
    def live_bytes(self) -> int:
        """What it holds now."""

    @property
    def peak_bytes(self) -> int:
        """The most it held since ``start``."""

    trace: list[int]
    """What it held after each operation inside ``measuring``, since ``start``."""

    def start(self) -> None: ...

    def measuring(self) -> AbstractContextManager[Any]:
        """Tensors made inside count."""


class GpuMeter:
    """The allocator's own counters; memory of other processes is not ours to take."""

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

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._meter.trace.append(self._meter.live_bytes)
        return result


class HostMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as above
    """Counts the tensors that are made while it is active, and fails as a GPU does beyond ``limit_bytes``.

    The CPU's allocator has no counters and no limit of its own.  The limit also stands in for a small
    GPU where there is none: see ``pretended_memory``.
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
        """Tensors that were made before."""
        for tensor in tensors:
            self._count(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        self.trace.append(self.live_bytes)
        if self.live_bytes > self.limit_bytes:
            asked = self.live_bytes
            del result
            raise torch.OutOfMemoryError(
                f"CUDA out of memory on a pretended device: {asked:,} bytes are needed and {self.limit_bytes:,} are there"
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
    """``held`` are the tensors there already, which only the host's meter needs to be told."""
    return GpuMeter(device) if device.type == "cuda" else HostMeter(pretended_bytes(), held)


def available_bytes() -> int:
    """What the kernel would give out now without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 40


def pretended_bytes() -> int | None:
    """The memory of the device that this rank's CPU stands in for; None where it stands for none."""
    size = os.environ.get(PRETEND_VARIABLE)
    rank = os.environ.get(PRETEND_RANK_VARIABLE)
    if size is None or (rank is not None and rank != os.environ.get("RANK", "0")):
        return None
    return int(size)


def pretended_memory(held: Iterable[Tensor] = ()) -> AbstractContextManager[Any]:
    """Around a training on the CPU: fail as the pretended device would; nothing where there is none."""
    size = pretended_bytes()
    return nullcontext() if size is None else HostMeter(size, held)
