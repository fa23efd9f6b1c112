"""The devices of a training: their number, free memory and speed."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from training.config.plan import declared_memory_bytes
from training.plan.link import with_known_link
from training.plan.rates import Rates, device_name, rates_of

USABLE = 0.92  # of the free memory; allocators lose some to fragments, and kernels need scratch


@dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a training, all alike."""

    name: str
    kind: str  # "cuda" or "cpu"
    count: int
    free_bytes: int  # of each
    rates: Rates
    declared: bool = False  # whether ``free_bytes`` is a configured limit

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
    )


def free_bytes(device: torch.device, count: int) -> int:
    """Return the bytes free now; ranks on the CPU share host memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // count
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // count
