"""What the devices of a training are: how much memory is left on each, and how fast they work.

Rates are measured once for each device model and kept in a file, because they differ from the
data sheet by what matters.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.plan.given import declared_memory_bytes
from training.plan.types import PrecisionName

MEMORY_VARIABLE = (
    "BERTH_DEVICE_MEMORY_BYTES"  # what a job may use of each device; a simulated one has no other
)
CACHE_VARIABLE = "BERTH_RATES_FILE"
USABLE = 0.92  # of the free memory: allocators need room to cut, and kernels for their scratch
_TYPES: dict[PrecisionName, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_GPU_LINK = 50e9  # bytes a second between GPUs until measured: PCIe 5, or slow NVLink
_CPU_LINK = 1e9  # gloo over the loopback


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast one device works when it is alone."""

    flops: dict[str, float]  # of matrix products a second, by precision
    memory_bandwidth: float  # bytes a second, read and written
    operation_s: float  # least time of any operation
    link_bandwidth: float  # bytes a second of one rank to the next
    host_bandwidth: float  # bytes a second between device and host


@dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a training, all alike."""

    name: str
    kind: str  # "cuda" or "cpu"
    count: int
    free_bytes: int  # on each
    rates: Rates
    declared: bool = False  # whether ``free_bytes`` is a limit that somebody set

    @property
    def usable_bytes(self) -> float:
        return USABLE * self.free_bytes

    @property
    def sharing(self) -> int:
        """Ranks that share one set of cores; GPUs share nothing."""
        return self.count if self.kind == "cpu" else 1


def read_hardware(device: torch.device, count: int, *, memory_bytes: int | None = None) -> Hardware:
    """``count`` devices like this one; ``memory_bytes`` instead of what is free on it."""
    declared = memory_bytes or declared_memory_bytes()
    return Hardware(
        name=device_name(device),
        kind=device.type,
        count=count,
        free_bytes=min(
            declared or free_bytes(device, count), free_bytes(device, 1) if device.type == "cuda" else 2**62
        ),
        rates=rates_of(device),
        declared=declared is not None,
    )


def free_bytes(device: torch.device, count: int) -> int:
    """What is free now; ranks on the CPU share the host's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // count
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // count


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()} x {torch.get_num_threads()}"
    return f"CPU x {torch.get_num_threads()}"


def rates_of(device: torch.device) -> Rates:
    """Measured now, or earlier on a device of the same model; takes some tenths of a second once."""
    key = f"{device_name(device)}, torch {torch.__version__}"
    kept = _read_cache()
    if (known := _parse_rates(kept.get(key))) is not None:
        return known
    measured = measure_rates(device)
    _write_cache({**kept, key: asdict(measured)})
    return measured


def measure_rates(device: torch.device) -> Rates:
    on_gpu = device.type == "cuda"
    size = 4096 if on_gpu else 512
    large = torch.empty(2**27 if on_gpu else 2**22, device=device)  # floats
    small = torch.zeros(16, device=device)
    host = torch.empty(large.shape, pin_memory=True) if on_gpu else large
    moved = 2 * large.nbytes
    return Rates(
        flops={name: 2 * size**3 / _product_s(device, size, kind) for name, kind in _TYPES.items()},
        memory_bandwidth=moved / _best_s(lambda: large.add_(1.0), device),
        operation_s=_best_s(lambda: _add_often(small), device) / 50,
        link_bandwidth=_GPU_LINK if on_gpu else _CPU_LINK,
        host_bandwidth=large.nbytes / _best_s(lambda: large.copy_(host), device) if on_gpu else _CPU_LINK * 4,
    )


def _product_s(device: torch.device, size: int, kind: torch.dtype) -> float:
    left = torch.ones(size, size, device=device, dtype=kind)
    return _best_s(lambda: left @ left, device)


def _add_often(tensor: Tensor) -> None:
    for _ in range(50):
        tensor.add_(1.0)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """The quickest of a few runs: others only add noise."""
    times = []
    for _ in range(8):
        _wait(device)
        began_s = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began_s)
    return max(min(times), 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cache_path() -> Path:
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 -- never fails
    return Path(folder) / "berth" / "rates.json"


def _read_cache() -> dict[str, Any]:
    try:
        kept = json.loads(_cache_path().read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write_cache(rates: dict[str, Any]) -> None:
    path = _cache_path()
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(rates, indent=2))
        part.replace(path)
    except OSError:
        return  # in a sandbox the home cannot be written: the next start measures again


def _parse_rates(kept: Any) -> Rates | None:
    try:
        return Rates(**{field.name: kept[field.name] for field in fields(Rates)})
    except (TypeError, KeyError):
        return None
