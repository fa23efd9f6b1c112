"""Job traces and pools in the format of ``benchmarks/data/traces/README.md``."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from orchestrator.scheduling import Device

GIB = 2**30
POOL = "pool"


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One line of a trace; ``duration_s`` is the truth that no policy may see."""

    id: str
    arrival_s: float
    gpus: int
    gpu_milli: int
    mem_gib: float | None
    duration_s: float
    limit_s: float | None
    user: str
    priority: int


def read_trace(path: Path) -> list[TraceJob]:
    """The jobs in the order in which they arrive."""
    with path.open(newline="") as file:
        jobs = [
            TraceJob(
                id=row["job_id"],
                arrival_s=float(row["arrival_s"]),
                gpus=int(row["gpus"]),
                gpu_milli=min(1000, int(row["gpu_milli"] or 1000)),
                mem_gib=float(row["mem_gib"]) if row.get("mem_gib") else None,
                duration_s=float(row["duration_s"]),
                limit_s=float(row["limit_s"]) if row.get("limit_s") else None,
                user=row.get("user") or "?",
                priority=int(row.get("priority") or 0),
            )
            for row in csv.DictReader(file)
        ]
    return sorted(jobs, key=lambda job: (job.arrival_s, len(job.id), job.id))


def read_pool(path: Path) -> tuple[Device, ...]:
    """The devices of a pool; their ids are "node:index", as the checker writes them."""
    devices = []
    for node in json.loads(path.read_text())["nodes"]:
        sizes = node.get("gpu_mem_gib", 80)
        linked = {index: set(group) - {index} for group in node.get("nvlink", []) for index in group}
        group_of = {index: number for number, group in enumerate(node.get("numa", [])) for index in group}
        for index in range(node["gpus"]):
            size_gib = sizes[index] if isinstance(sizes, list) else sizes
            devices.append(
                Device(
                    id=f"{node['name']}:{index}",
                    node=node["name"],
                    pool=POOL,
                    index=index,
                    total_bytes=round(size_gib * GIB),
                    numa_node=group_of.get(index),
                    nvlink=tuple(f"{node['name']}:{other}" for other in sorted(linked.get(index, ()))),
                )
            )
    return tuple(devices)


def claim_bytes(job: TraceJob, device_bytes: int) -> int | None:
    """The memory that stands for a part of a GPU: compute is shared in the same proportion."""
    if job.gpu_milli >= 1000:
        return None
    claim = job.gpu_milli * device_bytes // 1000
    return claim if job.mem_gib is None else max(claim, round(job.mem_gib * GIB))
