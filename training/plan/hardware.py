"""The devices of a training: their number, free memory and speed."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from training.config.plan import declared_memory_bytes
from training.plan.link import with_known_link
from training.plan.rates import Rates, device_name, rates_of

USABLE = 0.92  # of the free memory; allocators lose some to fragments, and kernels need scratch
_HOPPER = 9  # the first generation for which torch takes the large workspace
_WORKSPACE_BYTES = (8 << 20) + (128 << 10)  # of cuBLAS before Hopper; these are torch's defaults
_LARGE_WORKSPACE_BYTES = 32 << 20
_LT_WORKSPACE_BYTES = 1 << 20  # of cuBLASLt, unless it shares that of cuBLAS
_THREADS = 2  # that multiply: the script's, and autograd's for the backward passes


@dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a training, all alike."""

    name: str
    kind: str  # "cuda" or "cpu"
    count: int
    free_bytes: int  # of each
    rates: Rates
    declared: bool = False  # whether ``free_bytes`` is a configured limit
    workspace_bytes: int = 0  # that torch keeps on each for matrix products

    @property
    def usable_bytes(self) -> float:
        return USABLE * self.free_bytes

    @property
    def sharing(self) -> int:
        """Number of ranks that share the same cores; 1 for GPUs."""
        return self.count if self.kind == "cpu" else 1


def read_hardware(device: torch.device, count: int, *, memory_bytes: int | None = None) -> Hardware:
    """Describe ``count`` devices like this one; ``memory_bytes`` replaces the free memory."""
    declared = memory_bytes or declared_memory_bytes()
    return Hardware(
        name=device_name(device),
        kind=device.type,
        count=count,
        free_bytes=min(
            declared or free_bytes(device, count), free_bytes(device, 1) if device.type == "cuda" else 2**62
        ),
        rates=with_known_link(rates_of(device), device, count),
        declared=declared is not None,
        workspace_bytes=(
            workspace_bytes(torch.cuda.get_device_capability(device), os.environ)
            if device.type == "cuda"
            else 0
        ),
    )


def workspace_bytes(capability: tuple[int, int], variables: Mapping[str, str]) -> int:
    """Return what torch's allocator holds for cuBLAS on a GPU, from its first matrix product to the end.

    Torch keeps a workspace for each thread and stream; backward passes have a thread of their own.

    Args:
        capability: the GPU's compute capability.
        variables: the environment, in which ``CUBLAS_WORKSPACE_CONFIG`` replaces the size.
    """
    pools = re.findall(r":(\d+):(\d+)", variables.get("CUBLAS_WORKSPACE_CONFIG", ""))
    of_thread = _LARGE_WORKSPACE_BYTES if capability[0] >= _HOPPER else _WORKSPACE_BYTES
    if pools:
        of_thread = sum((int(kib) << 10) * int(count) for kib, count in pools)
    if variables.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "0":
        kib = variables.get("CUBLASLT_WORKSPACE_SIZE", "")
        of_thread += int(kib) << 10 if kib.isdecimal() else _LT_WORKSPACE_BYTES
    return _THREADS * of_thread


def free_bytes(device: torch.device, count: int) -> int:
    """Return the bytes free now; ranks on the CPU share host memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // count
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // count
