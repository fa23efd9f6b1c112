"""Read job traces and pools in the format of ``benchmarks/data/traces/README.md``."""

import csv
import json
from collections.abc import Iterator, Mapping
from math import inf, nan
from pathlib import Path
from typing import Any

from orchestrator.scheduler.core import Device
from orchestrator.scheduler.simulator.trace import GIB, POOL, TraceJob

_NEEDED = ("job_id", "arrival_s", "gpus", "duration_s")


def read_trace(path: Path) -> list[TraceJob]:
    """The jobs in the order in which they arrive.

    Raises:
        ValueError: the file is not a trace; the sentence says where.
    """
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if missing := [name for name in _NEEDED if name not in (rows.fieldnames or ())]:
            raise ValueError(f"{path.name} has no column {missing[0]}; its first line names the columns.")
        jobs = []
        for row in rows:
            try:
                jobs.append(_job(row))
            except ValueError as error:
                raise ValueError(f"{path.name}, line {rows.line_num}: {error}") from None
    if not jobs:
        raise ValueError(f"{path.name} has no jobs.")
    if len({job.id for job in jobs}) < len(jobs):
        raise ValueError(f"{path.name} has two jobs of one job_id.")
    return sorted(jobs, key=lambda job: (job.arrival_s, len(job.id), job.id))


def _job(row: Mapping[str, str | None]) -> TraceJob:
    gpus = _number(row, "gpus", least=1)
    if gpus != int(gpus):
        raise ValueError(f"gpus is {row['gpus']!r}; give a whole number.")
    return TraceJob(
        id=row["job_id"] or "",
        arrival_s=_number(row, "arrival_s"),
        gpus=int(gpus),
        gpu_milli=min(1000, int(_number(row, "gpu_milli", least=1, default=1000.0))),
        mem_gib=_number(row, "mem_gib") if row.get("mem_gib") else None,
        duration_s=_number(row, "duration_s", least=1e-3),
        limit_s=_number(row, "limit_s") if row.get("limit_s") else None,
        user=row.get("user") or "?",
        priority=int(_number(row, "priority", default=0.0)),
    )


def _number(
    row: Mapping[str, str | None], name: str, *, least: float = 0.0, default: float | None = None
) -> float:
    text = row.get(name)
    if not text and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = nan
    if not least <= value < inf:
        raise ValueError(f"{name} is {(text or '')[:40]!r}; give a number from {least:g} on.")
    return value


def read_pool(path: Path) -> tuple[Device, ...]:
    """The devices of a pool; their ids are "node:index", as the checker writes them.

    Raises:
        ValueError: the file does not describe a pool; the sentence says where.
    """
    try:
        nodes = json.loads(path.read_text())["nodes"]
        devices = tuple(device for node in nodes for device in _devices(node))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is no JSON: {error}.") from None
    except (KeyError, TypeError, IndexError, AttributeError, UnicodeDecodeError):
        example = '{"nodes": [{"name": "n0", "gpus": 8, "gpu_mem_gib": 80}]}'
        raise ValueError(f"{path.name} describes no pool; give {example}.") from None
    if not devices:
        raise ValueError(f"{path.name} has no GPU.")
    return devices


def _devices(node: Mapping[str, Any]) -> Iterator[Device]:
    sizes = node.get("gpu_mem_gib", 80)
    linked = {index: set(group) - {index} for group in node.get("nvlink", []) for index in group}
    group_of = {index: number for number, group in enumerate(node.get("numa", [])) for index in group}
    for index in range(node["gpus"]):
        size_gib = sizes[index] if isinstance(sizes, list) else sizes
        yield Device(
            id=f"{node['name']}:{index}",
            node=node["name"],
            pool=POOL,
            index=index,
            total_bytes=round(size_gib * GIB),
            numa_node=group_of.get(index),
            nvlink=tuple(f"{node['name']}:{other}" for other in sorted(linked.get(index, ()))),
        )
