"""Speed of exchanges between ranks: measured during planning, once per host and number of ranks."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from training.plan.rates import Rates, cache_key, read_cache, write_cache

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # not exported by torch.distributed

_FLOATS = {"cuda": 1 << 24, "cpu": 1 << 20}  # of the long message; long enough that latency is negligible
_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Link:
    bandwidth: float  # bytes a second that each rank sends in a ring
    latency_s: float  # of an exchange of a few bytes


def with_known_link(rates: Rates, device: torch.device, count: int) -> Rates:
    """Fill in the link as measured earlier by ``count`` ranks here, or else by another number of ranks."""
    cache = read_cache()
    links = [_parse(cache.get(_key(device, ranks))) for ranks in (count, 2, 4, 8)]
    link = next((link for link in links if link is not None), None)
    if count == 1 or link is None:
        return rates
    return replace(rates, link_bandwidth=link.bandwidth, link_latency_s=link.latency_s)


def measure_unless_known(
    device: torch.device,
    store: "Store",
    rank: int,
    count: int,
    timeout: timedelta,
    *,
    key: str = "link",
) -> None:
    """Measure the link unless rank 0 has it cached; all ranks must call this before they are connected."""
    if rank == 0:
        cached = _parse(read_cache().get(_key(device, count)))
        store.set(key, "known" if cached else "measure")
    if store.get(key) == b"known":
        return
    connects = not distributed.is_initialized()
    if connects:
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
    try:
        link = measure_link(device, count)
    finally:
        if connects:
            distributed.destroy_process_group()
    if rank == 0:
        write_cache({**read_cache(), _key(device, count): asdict(link)})


def measure_link(device: torch.device, count: int) -> Link:
    """Measure all-reduces of a short and a long message, the fastest of a few; all ranks must call this together."""
    short, long = torch.zeros(1, device=device), torch.zeros(_FLOATS[device.type], device=device)
    short_s = _quickest_s(lambda: distributed.all_reduce(short), device)
    long_s = _quickest_s(lambda: distributed.all_reduce(long), device)
    sent_bytes = 2 * (count - 1) / count * long.nbytes  # per rank, in a ring
    return Link(sent_bytes / max(long_s - short_s, 0.1 * long_s), short_s)


def _quickest_s(exchange: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        exchange()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began_s)
    return max(min(times[1:]), 1e-9)  # the first one connects


def _key(device: torch.device, count: int) -> str:
    return f"{cache_key(device)}, {count} ranks"


def _parse(entry: Any) -> Link | None:
    if not isinstance(entry, dict):
        return None
    bandwidth, latency_s = entry.get("bandwidth"), entry.get("latency_s")
    if not isinstance(bandwidth, float) or not isinstance(latency_s, float):
        return None
    return Link(bandwidth, latency_s) if 0 < bandwidth < 1e15 and 0 < latency_s < 60 else None
