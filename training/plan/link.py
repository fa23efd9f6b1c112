"""How fast ranks exchange: measured by the ranks of a training that is being planned, once for each host and number."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from training.plan.rates import Rates, cache_key, read_cache, write_cache

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed has it, without saying so

_FLOATS = {"cuda": 1 << 24, "cpu": 1 << 20}  # of the long message; long enough that its start does not count
_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Link:
    bandwidth: float  # bytes a second that each rank sends in a ring
    latency_s: float  # of an exchange of a few bytes


def with_known_link(rates: Rates, device: torch.device, count: int) -> Rates:
    """With what ``count`` ranks measured here earlier, or else some other number of them."""
    kept = read_cache()
    known = [_parse(kept.get(_key(device, each))) for each in (count, 2, 4, 8)]
    link = next((each for each in known if each is not None), None)
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
    """All ranks call it before they are connected; rank 0 looks whether it is known, and keeps what is measured."""
    if rank == 0:
        known = _parse(read_cache().get(_key(device, count)))
        store.set(key, "known" if known else "measure")
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
    """From all-reduces of a short and a long message, the quickest of a few; all ranks call it together."""
    short, long = torch.zeros(1, device=device), torch.zeros(_FLOATS[device.type], device=device)
    short_s = _quickest_s(lambda: distributed.all_reduce(short), device)
    long_s = _quickest_s(lambda: distributed.all_reduce(long), device)
    sent_bytes = 2 * (count - 1) / count * long.nbytes  # of each rank, in a ring
    return Link(sent_bytes / max(long_s - short_s, 0.1 * long_s), short_s)


def _quickest_s(exchange: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        exchange()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began_s)
    return max(min(times[1:]), 1e-9)  # the first connects


def _key(device: torch.device, count: int) -> str:
    return f"{cache_key(device)}, {count} ranks"


def _parse(kept: Any) -> Link | None:
    if not isinstance(kept, dict):
        return None
    bandwidth, latency_s = kept.get("bandwidth"), kept.get("latency_s")
    if not isinstance(bandwidth, float) or not isinstance(latency_s, float):
        return None
    return Link(bandwidth, latency_s) if 0 < bandwidth < 1e15 and 0 < latency_s < 60 else None
