"""Speed of a device: measured once per model of device, and cached in a file."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.config.plan import PrecisionName

CACHE_VARIABLE = "BERTH_RATES_FILE"
_TYPES: dict[PrecisionName, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# Defaults until ``link.measure_link`` has measured.
_GPU_LINK, _GPU_LATENCY_S = 50e9, 30e-6  # bytes a second between GPUs: PCIe 5, or slow NVLink
_CPU_LINK, _CPU_LATENCY_S = 1e9, 300e-6  # gloo over the loopback


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of one device without other load."""

    flops: dict[str, float]  # per second in matrix products, by precision
    memory_bandwidth: float  # bytes a second, read and written
    operation_s: float  # least time of an operation
    link_bandwidth: float  # bytes a second between neighbouring ranks
    link_latency_s: float  # of the smallest exchange among ranks
    host_bandwidth: float  # bytes a second between device and host


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()} x {torch.get_num_threads()}"
    return f"CPU x {torch.get_num_threads()}"


def rates_of(device: torch.device) -> Rates:
    """Return the cached rates of this device's model, or measure them, in some tenths of a second."""
    key = cache_key(device)
    cache = read_cache()
    if (rates := _parse_rates(cache.get(key))) is not None:
        return rates
    measured = measure_rates(device)
    write_cache({**cache, key: asdict(measured)})
    return measured


def cache_key(device: torch.device) -> str:
    return f"{device_name(device)}, torch {torch.__version__}"


def measure_rates(device: torch.device) -> Rates:
    on_gpu = device.type == "cuda"
    size = 4096 if on_gpu else 512
    large = torch.empty(2**27 if on_gpu else 2**22, device=device)  # floats
    small = torch.zeros(16, device=device)
    host = torch.empty(large.shape, pin_memory=True) if on_gpu else large
    moved = 2 * large.nbytes
    return Rates(
        flops={name: 2 * size**3 / _product_s(device, size, kind) for name, kind in _TYPES.items()},
        memory_bandwidth=moved / best_s(lambda: large.add_(1.0), device),
        operation_s=best_s(lambda: _add_often(small), device) / 50,
        link_bandwidth=_GPU_LINK if on_gpu else _CPU_LINK,
        link_latency_s=_GPU_LATENCY_S if on_gpu else _CPU_LATENCY_S,
        host_bandwidth=large.nbytes / best_s(lambda: large.copy_(host), device) if on_gpu else _CPU_LINK * 4,
    )


def _product_s(device: torch.device, size: int, kind: torch.dtype) -> float:
    left = torch.ones(size, size, device=device, dtype=kind)
    return best_s(lambda: left @ left, device)


def _add_often(tensor: Tensor) -> None:
    for _ in range(50):
        tensor.add_(1.0)


def best_s(work: Callable[[], object], device: torch.device) -> float:
    """Return the fastest of a few runs; the others contain noise."""
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


def read_cache() -> dict[str, Any]:
    try:
        cache = json.loads(_cache_path().read_text())
    except (OSError, ValueError):
        return {}
    return cache if isinstance(cache, dict) else {}


def write_cache(cache: Mapping[str, Any]) -> None:
    path = _cache_path()
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(cache, indent=2))
        part.replace(path)
    except OSError:
        return  # a sandbox's home is read-only: the next start measures again


def _parse_rates(entry: Any) -> Rates | None:
    try:
        return Rates(**{field.name: entry[field.name] for field in fields(Rates)})
    except (TypeError, KeyError):
        return None
