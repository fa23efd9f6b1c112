"""A device as the scheduler sees it: its row, and what was measured on it last."""

from collections.abc import Collection
from typing import Any

from orchestrator.models import Device
from orchestrator.scheduler import core


def device_facts(
    row: Device, reading: dict[str, Any] | None, holders: Collection[tuple[str, int]] = ()
) -> core.Device:
    """
    Args:
        holders: job and number of the attempts that hold it now.
    """
    return core.Device(
        id=row.id,
        node=row.node,
        pool=row.pool_id,
        total_bytes=row.memory_bytes,
        kind=row.kind,
        index=row.index,
        used_bytes=reading["used_bytes"] if reading else 0,
        foreign_bytes=reading["foreign_bytes"] if reading else 0,
        residue_bytes=_residue_bytes(reading, holders) if reading and row.kind == "gpu" else 0,
        admin_state=row.admin_state,
        health=row.health,
        numa_node=row.numa_node,
        nvlink=tuple(row.nvlink),
        mig_parent=row.mig_parent or None,
        mig_profile=row.mig_profile or None,
    )


def _residue_bytes(reading: dict[str, Any], holders: Collection[tuple[str, int]]) -> int:
    """What attempts that hold it no longer had when it was read last: it is idle when a reading shows none (F27)."""
    return sum(
        each["used_bytes"]
        for each in reading.get("processes", ())
        if each.get("attempt") is not None and (each["job"], each["attempt"]) not in holders
    )
